#pragma once

// Patterns of names of parameters in a deck: words with * for any characters, separated by blanks or commas, with '.'
// or '/' between the parts of a name, such as 'mlp.*_proj'.

#include <string>
#include <vector>

#include "nanotron/model/parameters/parameter_table.hpp"

namespace nanotron::model {

struct NamePattern {
  std::string written, glob;  // as in the deck, and of names as ParameterSpec has them
  bool is_inverted = false;   // begins with '!', which is not part of glob

  bool fits(const std::string& name) const;
  /// Also the end of a name, after a '/'.
  bool fits_end(const std::string& name) const;
};
std::vector<NamePattern> name_patterns(std::string text);

/// The parameters that such a deck trains or reads. Of a deck that is not resolved only their names count: sizes that
/// the program chooses later are any.
ParameterTable named_parameters(const deck::Config& config);

}  // namespace nanotron::model
