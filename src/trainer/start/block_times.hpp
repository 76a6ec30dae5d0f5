#pragma once

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::trainer {

/// With pp > 1, parallel%pp_cut = 'time' and an empty parallel%pp_layers: measures embedding, layer and head on this
/// machine and writes the layer count of each stage into parallel%pp_layers. Collective over the world; the same on
/// every rank.
void choose_pipeline_cut(deck::Config& config, comm::ProcessGrid& grid);

}  // namespace nanotron::trainer
