#pragma once

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::trainer {

/// For a pipeline with parallel%pp_cut = 'time' and no cut given: measures embedding, layer and head on this machine
/// and writes the cut into parallel%pp_layers. Collective over the world; the same on every rank.
void choose_pipeline_cut(deck::Config& config, comm::ProcessGrid& grid);

}  // namespace nanotron::trainer
