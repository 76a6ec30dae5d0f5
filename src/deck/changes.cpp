#include "nanotron/deck/changes.hpp"

namespace nanotron::deck {

std::vector<Change> changes_since(const std::string& before, const Config& config) {
  const Namelists old = read_namelists({"the checkpoint's deck", before}, parameter_groups());
  std::vector<Change> changes;
  if (old.assigned.empty()) return changes;
  for (const Parameter& p : parameters()) {
    if (p.influence == Influence::none || p.part_of != PartOf::no_model) continue;
    const auto found = old.assigned.find({p.group, p.name});
    const bool was_set = found != old.assigned.end() && !found->second.elements.empty() && found->second.elements[0];
    const Scalar was = was_set ? found->second.elements[0]->scalar : p.get(Config{}), is = p.get(config);
    if (was != is) changes.push_back({p.group + "%" + p.name, spelled(was), spelled(is), p.influence});
  }
  return changes;
}

}  // namespace nanotron::deck
