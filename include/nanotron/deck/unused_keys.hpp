#pragma once
// Keys without effect, because they belong to a choice that the deck has not made.

#include <initializer_list>
#include <string>

#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::deck {

/// Reports the first of the keys ("group.name") that is not at its default: "<name> belongs to <choice>, which this
/// model does not have".
void refuse_unused(const Config& config, std::initializer_list<const char*> keys, const std::string& choice,
                   const std::string& expected, Findings& findings);

}  // namespace nanotron::deck
