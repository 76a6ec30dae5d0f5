// Which parameters decay: 2-D ones, unless optimizer%no_weight_decay says otherwise.

#include <algorithm>
#include <set>

#include "nanotron/deck/config.hpp"
#include "nanotron/model/parameters/name_patterns.hpp"
#include "optim/optimizers.hpp"

namespace nanotron::optim {
namespace {

constexpr std::size_t names_shown = 3;

// A pattern with '!' says that a parameter decays.
bool fits(const model::NamePattern& pattern, const nn::ParameterSpec& spec) {
  return spec.has_gradient && (pattern.fits(spec.name) || (!spec.stack.empty() && pattern.fits(spec.stack)));
}

std::size_t longest_common_part(const std::string& a, const std::string& b) {
  std::size_t longest = 0;
  std::vector<std::size_t> before(b.size() + 1, 0);
  for (const char of_a : a) {
    std::vector<std::size_t> now(b.size() + 1, 0);
    for (std::size_t j = 0; j < b.size(); ++j) {
      if (of_a == b[j]) longest = std::max(longest, now[j + 1] = before[j] + 1);
    }
    before = std::move(now);
  }
  return longest;
}

// Those that share the longest part with the pattern.
std::string near_names(const std::string& glob, const model::ParameterTable& table) {
  std::vector<std::pair<std::size_t, std::string>> near;
  std::set<std::string> seen;
  for (const nn::ParameterSpec& spec : table.specs) {
    if (!spec.has_gradient) continue;
    const std::string& name = spec.stack.empty() ? spec.name : spec.stack;
    if (seen.insert(name).second) near.emplace_back(longest_common_part(glob, name), name);
  }
  std::ranges::stable_sort(near, std::ranges::greater{}, &std::pair<std::size_t, std::string>::first);
  std::string text;
  for (std::size_t i = 0; i < std::min(near.size(), names_shown); ++i) text += (i > 0 ? ", " : "") + near[i].second;
  return text;
}

}  // namespace

model::ParameterTable with_weight_decay(model::ParameterTable table, const std::string& patterns) {
  for (const model::NamePattern& pattern : model::name_patterns(patterns)) {
    for (nn::ParameterSpec& spec : table.specs) {
      if (fits(pattern, spec)) spec.decays = pattern.is_inverted;
    }
  }
  return table;
}

void check_weight_decay(const deck::Config& c, deck::Findings& f) {
  if (f.errors() > 0 || c.optimizer.no_weight_decay.empty()) return;
  const model::ParameterTable table = model::named_parameters(c);
  for (const model::NamePattern& pattern : model::name_patterns(c.optimizer.no_weight_decay)) {
    if (std::ranges::any_of(table.specs, [&](const nn::ParameterSpec& spec) { return fits(pattern, spec); })) continue;
    f.error({"optimizer.no_weight_decay"},
            "no parameter that is trained has a name that fits " + deck::quoted(pattern.written),
            "a name such as " + near_names(pattern.glob, table), "with * for any characters, such as '*embed_tokens*'");
  }
}

}  // namespace nanotron::optim
