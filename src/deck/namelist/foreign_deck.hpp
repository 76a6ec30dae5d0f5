#pragma once
// Private to the deck layer.

#include <string>
#include <string_view>

namespace nanotron::deck::detail {

/// "YAML", "JSON", "TOML", "an HDF5 file", UTF-16 when the text has no namelist group and looks like one of these; else
/// empty.
std::string foreign_format(std::string_view text);

/// Throws Error(deck_error), which says once what a deck is, when the text is of a foreign format.
void require_namelist(std::string_view text, const std::string& file_name);

}  // namespace nanotron::deck::detail
