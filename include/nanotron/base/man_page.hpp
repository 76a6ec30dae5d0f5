#pragma once

// Parts of a manual page in the macros of man(7).

#include <string>

namespace nanotron::man {

/// Escapes words as plain text: they contain no request, and quotes and hyphens stay ASCII.
std::string text(const std::string& words);
std::string bold(const std::string& words);
std::string italic(const std::string& words);

/// .TH with the source's date and version, and NAME.
std::string head(const std::string& name, int section, const std::string& summary);

/// An item of a list: a tag (already man's) and what it means (plain).
std::string item(const std::string& tag, const std::string& meaning);

}  // namespace nanotron::man
