#pragma once

// The widths of a layer's attention, whichever kind it is.

#include <cstdint>

#include "nanotron/deck/keys/model.hpp"

namespace nanotron::deck {

struct AttentionSizes {
  bool is_compressed = false;  // queries, keys and values are projected from compressed tokens (latent attention)
  std::int64_t head_dim = 0;   // of queries and keys; 0: model%hidden_size has no such head
  std::int64_t rotated = 0;    // elements of it that RoPE may rotate
  std::int64_t value_dim = 0;  // of values
  double matrices = 0.0;       // elements of the 2-D parameters
};
AttentionSizes attention_sizes(const ModelConfig& model);

}  // namespace nanotron::deck
