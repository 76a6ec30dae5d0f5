#include "nanotron/deck/namelist/suggestions.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace nanotron::deck {
namespace {

bool has(const std::vector<NamelistGroup>& groups, std::string_view group, std::string_view key) {
  return std::any_of(groups.begin(), groups.end(), [&](const NamelistGroup& g) {
    return g.name == group &&
           std::any_of(g.variables.begin(), g.variables.end(), [&](const Variable& v) { return v.name == key; });
  });
}

std::string with_note(std::string hint, std::string_view note) {
  return note.empty() ? hint : hint + " (" + std::string(note) + ")";
}

/// The hint when the word stands for a key of this or of another group.
Suggestion meant(std::string_view word, std::string_view group, std::string our_group, std::string key) {
  Suggestion s{std::move(our_group), std::move(key), {}};
  if (group.empty()) {
    s.hint = "did you mean " + s.group + "." + s.key + "?";
  } else if (s.group == group) {
    s.hint = "did you mean '" + s.key + "'?";
  } else if (s.key == word) {
    s.hint = "'" + s.key + "' belongs in group '&" + s.group + "'";
  } else {
    s.hint = "did you mean '" + s.key + "' of group '&" + s.group + "'?";
  }
  return s;
}

/// The nearest key of the groups that `wanted` accepts, as (group, key).
template <class Wanted>
std::pair<std::string, std::string> nearest_key(std::string_view word, const std::vector<NamelistGroup>& groups,
                                                Wanted wanted) {
  std::vector<std::string> names;
  for (const NamelistGroup& g : groups) {
    if (!wanted(g)) continue;
    for (const Variable& v : g.variables) names.push_back(v.name);
  }
  const std::string near = nearest_word(word, names);
  for (const NamelistGroup& g : groups) {
    if (!near.empty() && wanted(g) && has(groups, g.name, near)) return {g.name, near};
  }
  return {};
}

}  // namespace

Suggestion suggest_key(std::string_view word, std::string_view group, const std::vector<NamelistGroup>& groups) {
  const std::string name = to_lower(word);
  for (const NamelistGroup& g : groups) {
    if (g.name != group && has(groups, g.name, name)) return meant(name, group, g.name, name);
  }
  for (const KnownName& known : known_names()) {
    if (known.theirs != name) continue;
    const std::size_t dot = known.ours.find('.');
    if (dot == std::string_view::npos) return {{}, {}, std::string(known.note)};
    const std::string our_group(known.ours.substr(0, dot)), key(known.ours.substr(dot + 1));
    if (!has(groups, our_group, key)) continue;
    Suggestion s = meant(name, group, our_group, key);
    s.hint = with_note(s.hint, known.note);
    return s;
  }
  auto [near_group, near] = nearest_key(name, groups, [&](const NamelistGroup& g) { return g.name == group; });
  if (near.empty()) std::tie(near_group, near) = nearest_key(name, groups, [](const NamelistGroup&) { return true; });
  return near.empty() ? Suggestion{} : meant(name, group, near_group, near);
}

std::string suggest_group(std::string_view word, const std::vector<NamelistGroup>& groups) {
  static const std::pair<std::string_view, std::string_view> theirs[] = {{"general", "run"},
                                                                         {"train", "run"},
                                                                         {"training", "run"},
                                                                         {"trainer", "run"},
                                                                         {"optim", "optimizer"},
                                                                         {"lr_scheduler", "schedule"},
                                                                         {"scheduler", "schedule"},
                                                                         {"parallelism", "parallel"},
                                                                         {"dataset", "data"},
                                                                         {"tokens", "data"},
                                                                         {"data_stages", "data"},
                                                                         {"dtype", "precision"},
                                                                         {"mixed_precision", "precision"},
                                                                         {"logging", "output"},
                                                                         {"checkpointing", "checkpoint"}};
  const std::string name = to_lower(word);
  std::vector<std::string> names;
  for (const NamelistGroup& g : groups) names.push_back(g.name);
  for (const auto& [their, our] : theirs) {
    if (their == name && std::find(names.begin(), names.end(), our) != names.end()) return std::string(our);
  }
  return nearest_word(name, names);
}

}  // namespace nanotron::deck
