// Which parameters decay: 2-D ones, unless optimizer%no_weight_decay says otherwise.

#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "nanotron/deck/config.hpp"
#include "optim/optimizers.hpp"

namespace nanotron::optim {
namespace {

constexpr std::size_t names_shown = 3;

struct Pattern {
  std::string written, glob;  // as in the deck, and of names with '/'
  bool decays = false;

  bool fits(const nn::ParameterSpec& spec) const {
    const auto is = [&](const std::string& name) { return ::fnmatch(glob.c_str(), name.c_str(), 0) == 0; };
    return is(spec.name) || (!spec.stack.empty() && is(spec.stack));
  }
};

// Words separated by blanks or commas. '.' stands for '/', as in Hugging Face's names.
std::vector<Pattern> patterns_of(std::string text) {
  std::ranges::replace(text, ',', ' ');
  std::istringstream words(text);
  std::vector<Pattern> all;
  for (std::string word; words >> word;) {
    Pattern p{.written = word, .glob = word};
    if (word.front() == '!') p.decays = true, p.glob.erase(0, 1);
    std::ranges::replace(p.glob, '.', '/');
    all.push_back(std::move(p));
  }
  return all;
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
    const std::string& name = spec.stack.empty() ? spec.name : spec.stack;
    if (seen.insert(name).second) near.emplace_back(longest_common_part(glob, name), name);
  }
  std::ranges::stable_sort(near, std::ranges::greater{}, &std::pair<std::size_t, std::string>::first);
  std::string text;
  for (std::size_t i = 0; i < std::min(near.size(), names_shown); ++i) text += (i > 0 ? ", " : "") + near[i].second;
  return text;
}

// The names alone matter: sizes that the program chooses later are any.
deck::ModelConfig with_all_sizes(deck::ModelConfig m) {
  if (m.num_key_value_heads == 0) m.num_key_value_heads = m.num_attention_heads;
  if (m.head_dim == 0) m.head_dim = 2;
  if (m.vocab_size == 0) m.vocab_size = 1;
  return m;
}

}  // namespace

model::ParameterTable with_weight_decay(model::ParameterTable table, const std::string& patterns) {
  for (const Pattern& pattern : patterns_of(patterns)) {
    for (nn::ParameterSpec& spec : table.specs) {
      if (spec.has_gradient && pattern.fits(spec)) spec.decays = pattern.decays;
    }
  }
  return table;
}

void check_weight_decay(const deck::Config& c, deck::Findings& f) {
  if (f.errors() > 0 || c.optimizer.no_weight_decay.empty()) return;
  const model::ParameterTable table = model::make_parameter_table(with_all_sizes(c.model));
  for (const Pattern& pattern : patterns_of(c.optimizer.no_weight_decay)) {
    if (std::ranges::any_of(table.specs, [&](const nn::ParameterSpec& spec) { return pattern.fits(spec); })) continue;
    f.error({"optimizer.no_weight_decay"},
            "no parameter of the model has a name that fits " + deck::quoted(pattern.written),
            "a name such as " + near_names(pattern.glob, table), "with * for any characters, such as '*embed_tokens*'");
  }
}

}  // namespace nanotron::optim
