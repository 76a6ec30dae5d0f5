#pragma once
// Parts of messages about numbers in a deck.

#include <cstdint>
#include <string>

namespace nanotron::deck::phrases {

inline std::string text(std::int64_t n) { return std::to_string(n); }

/// "1 stage", "2 stages".
std::string counted(std::int64_t n, const char* what);

/// "48 or 56": the multiples of `unit` on both sides of n.
std::string nearest_multiples(std::int64_t n, std::int64_t unit);

/// "a divisor of 12: 4 or 6": those on both sides of n.
std::string nearest_divisors(std::int64_t n, std::int64_t of);

/// "tp <= 4", or "tp = 1".
std::string at_most(const std::string& name, std::int64_t n);

}  // namespace nanotron::deck::phrases
