#pragma once

#include "nanotron/base/log.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::trainer {

/// Where parallel%bucket_mb is 0: measures the all-reduce of the replicas on this machine, says what it found and
/// writes the size it chose in its place. Collective over the world; the same on every rank.
void choose_bucket(deck::Config& config, comm::ProcessGrid& grid, Log& log);

}  // namespace nanotron::trainer
