#pragma once
// Private to the deck layer.

#include <string>

#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::deck::detail {

/// Whether the deck's own grid passes every check.
bool grid_is_legal(const Config& config, Features features);

/// "dp = 3, tp = 1; ...": the three grids of that many ranks nearest to the deck's with which every check passes; empty
/// when there is none. Near is a small sum over the axes of |log2(degree / wish)|; a wish of 0 is any degree.
std::string nearest_grids(const Config& config, std::int64_t ranks, Features features);

}  // namespace nanotron::deck::detail
