#pragma once

#include "nanotron/base/log.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::trainer {

/// With parallel%bucket_mb = 0: measures the all-reduce over the data-parallel group on this machine, logs the result
/// and sets parallel%bucket_mb to the size it chose; with one data-parallel rank to the default. Collective over the
/// world; the same on every rank.
void choose_bucket(deck::Config& config, comm::ProcessGrid& grid, Log& log);

}  // namespace nanotron::trainer
