#pragma once

// A list of numbers in a string of a deck, such as rope_long_factor = '1.0 1.25, 3e1'.

#include <optional>
#include <string_view>
#include <vector>

namespace nanotron::deck {

/// Numbers between blanks or commas; nothing where the text has something else.
std::optional<std::vector<double>> reals(std::string_view text);

}  // namespace nanotron::deck
