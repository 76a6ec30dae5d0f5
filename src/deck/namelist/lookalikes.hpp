#pragma once
// Characters that editors and web pages put in place of those of a deck, and that look like them.

#include <cstddef>
#include <string>
#include <string_view>

namespace nanotron::deck::detail {

/// What to write for the first of them among `length` bytes of `line` from `at` on; empty without one.
std::string lookalike_hint(std::string_view line, std::size_t at, std::size_t length);

}  // namespace nanotron::deck::detail
