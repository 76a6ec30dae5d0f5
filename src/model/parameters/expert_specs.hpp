#pragma once

// The parameters of experts. Private to the model layer.

#include "table_builder.hpp"

namespace nanotron::model::detail {

/// The section of the experts of all layers. Every rank has the specs of every expert; experts of other ranks take no
/// memory.
void add_experts(TableBuilder& build, const deck::ModelConfig& model, ParameterTable& table, const LayerNumbers& layers,
                 int shards);

}  // namespace nanotron::model::detail
