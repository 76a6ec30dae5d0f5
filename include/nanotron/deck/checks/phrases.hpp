#pragma once

// What checks of several keys say.

#include <cstdint>
#include <initializer_list>
#include <string>

#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::deck::phrases {

// Parts of messages about numbers in a deck.

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

namespace nanotron::deck {

// Keys without effect, because they belong to a choice that the deck has not made.

/// Reports the first of the keys ("group.name") that is not at its default: "<name> belongs to <choice>, which this
/// model does not have".
void refuse_unused(const Config& config, std::initializer_list<const char*> keys, const std::string& choice,
                   const std::string& expected, Findings& findings);

}  // namespace nanotron::deck
