#include "nanotron/deck/changes.hpp"

#include "nanotron/deck/config.hpp"

namespace nanotron::deck {

std::optional<Config> config_of(const std::string& text) {
  const Namelists old = read_namelists({"the checkpoint's deck", text}, parameter_groups());
  if (old.assigned.empty()) return std::nullopt;
  Config config;
  for (const Parameter& p : parameters()) {
    const auto found = old.assigned.find({p.group, p.name});
    const bool was_set = found != old.assigned.end() && !found->second.elements.empty() && found->second.elements[0];
    if (was_set) p.set(config, found->second.elements[0]->scalar);
  }
  return config;
}

std::vector<Change> changes_since(const std::string& before, const Config& config) {
  const std::optional<Config> old = config_of(before);
  std::vector<Change> changes;
  if (!old) return changes;
  for (const Parameter& p : parameters()) {
    if (p.influence == Influence::none || p.part_of != PartOf::no_model) continue;
    const Scalar was = p.get(*old), is = p.get(config);
    if (was != is) changes.push_back({p.group + "%" + p.name, spelled(was), spelled(is), p.influence});
  }
  return changes;
}

}  // namespace nanotron::deck
