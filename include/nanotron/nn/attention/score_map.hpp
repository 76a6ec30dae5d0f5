#pragma once

#include "nanotron/deck/keys/model.hpp"
#include "nanotron/kernels/attention/score_map.hpp"

namespace nanotron::nn {

/// How the model's attention scores follow from products of queries and keys.
kernels::ScoreMap score_map(const deck::ModelConfig& model);

}  // namespace nanotron::nn
