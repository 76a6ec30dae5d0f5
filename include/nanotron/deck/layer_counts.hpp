#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace nanotron::deck {

/// parallel%pp_layers: numbers of at least 1, separated by blanks or a comma. Nothing when the text is something else.
std::optional<std::vector<std::int64_t>> layer_counts(std::string_view text);

}  // namespace nanotron::deck
