#pragma once

#include <string>

#include "nanotron/deck/checks/findings.hpp"

namespace nanotron {

/// precision%reproducible = 'layout': the grid may split sums at shard boundaries only. Checks the numbers of shards,
/// then, if there is no error so far, the degrees of the grid.
void check_layout(const deck::Config& config, deck::Findings& findings);

/// With 'layout': sets tensor_shards and batch_shards to the numbers in use, micro_batch_size = 1 and
/// tp_overlap_chunks = 1, so that each rank holds neighbouring tokens.
void fill_layout(deck::Config& config);

/// For a feature `what`, turned on by `key`, whose order of summation depends on the grid: an error with 'layout'.
void refuse_layout(const deck::Config& config, deck::Findings& findings, const char* key, const std::string& what,
                   const std::string& change);

}  // namespace nanotron
