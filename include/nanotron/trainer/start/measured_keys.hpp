#pragma once

// Keys that a deck leaves open and that measurements on this machine fill in.

#include "nanotron/base/log.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::trainer {

/// With parallel%bucket_mb = 0: measures the all-reduce over the data-parallel group on this machine, logs the result
/// and sets parallel%bucket_mb to the size it chose; with one data-parallel rank to the default. Collective over the
/// world; the same on every rank.
void choose_bucket(deck::Config& config, comm::ProcessGrid& grid, Log& log);

/// With pp > 1, parallel%pp_cut = 'time' and an empty parallel%pp_layers: measures embedding, layer and head on this
/// machine and writes the layer count of each stage into parallel%pp_layers. Collective over the world; the same on
/// every rank.
void choose_pipeline_cut(deck::Config& config, comm::ProcessGrid& grid);

}  // namespace nanotron::trainer
