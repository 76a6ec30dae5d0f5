#include "nanotron/model/parameters/name_patterns.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <sstream>

#include "nanotron/deck/config.hpp"

namespace nanotron::model {
namespace {

bool fits_glob(const std::string& glob, const std::string& name) {
  return ::fnmatch(glob.c_str(), name.c_str(), 0) == 0;
}

}  // namespace

bool NamePattern::fits(const std::string& name) const { return fits_glob(glob, name); }

bool NamePattern::fits_end(const std::string& name) const { return fits(name) || fits_glob("*/" + glob, name); }

std::vector<NamePattern> name_patterns(std::string text) {
  std::ranges::replace(text, ',', ' ');
  std::istringstream words(text);
  std::vector<NamePattern> all;
  for (std::string word; words >> word;) {
    NamePattern p{.written = word, .glob = word, .is_inverted = word.front() == '!'};
    if (p.is_inverted) p.glob.erase(0, 1);
    std::ranges::replace(p.glob, '.', '/');
    all.push_back(std::move(p));
  }
  return all;
}

ParameterTable named_parameters(const deck::Config& config) {
  deck::Config c = config;
  if (c.model.num_key_value_heads == 0) c.model.num_key_value_heads = c.model.num_attention_heads;
  if (c.model.head_dim == 0) c.model.head_dim = 2;
  if (c.model.vocab_size == 0) c.model.vocab_size = 1;
  return make_parameter_table(c);
}

}  // namespace nanotron::model
