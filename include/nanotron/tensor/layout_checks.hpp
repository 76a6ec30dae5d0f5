#pragma once

#include <string>

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron {

/// precision%reproducible = 'layout': the grid must cut no sum but where its shards are cut. Degrees are looked at where
/// no feature before it has found a mistake: of wrong sizes or shards nothing follows for them.
void check_layout(const deck::Config& config, deck::Findings& findings);

/// Shards that are 0; micro-batches of one sequence and whole gathers, so that neighbouring tokens lie on each rank.
void fill_layout(deck::Config& config);

/// For a feature with sums of its own that follow the grid, where `key` asks for it: 'layout' does not go with `what`.
void refuse_layout(const deck::Config& config, deck::Findings& findings, const char* key, const std::string& what,
                   const std::string& change);

}  // namespace nanotron
