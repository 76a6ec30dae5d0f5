#include "nanotron/model/cost.hpp"

namespace nanotron::model {
namespace {

double layer_matrices(const deck::ModelConfig& m) {
  const auto hidden = static_cast<double>(m.hidden_size);
  const auto query = static_cast<double>(m.num_attention_heads * m.head_dim);
  const auto key = static_cast<double>(m.num_key_value_heads * m.head_dim);
  return hidden * (2.0 * query + 2.0 * key) + 3.0 * hidden * static_cast<double>(m.intermediate_size);
}

double word_matrix(const deck::ModelConfig& m) {
  return static_cast<double>(m.hidden_size) * static_cast<double>(m.vocab_size);
}

}  // namespace

BlockCosts block_flops(const deck::ModelConfig& m, std::int64_t sequence_length) {
  const auto query = static_cast<double>(m.num_attention_heads * m.head_dim);
  return {.embedding = 0.0,
          .layer = 6.0 * layer_matrices(m) + 6.0 * query * (static_cast<double>(sequence_length) + 1.0),
          .head = 6.0 * word_matrix(m)};
}

BlockCosts block_parameters(const deck::ModelConfig& m) {
  return {.embedding = word_matrix(m), .layer = layer_matrices(m), .head = word_matrix(m)};
}

double training_flops_per_token(const deck::ModelConfig& m, std::int64_t sequence_length) {
  const BlockCosts flops = block_flops(m, sequence_length);
  return flops.embedding + static_cast<double>(m.num_hidden_layers) * flops.layer + flops.head;
}

}  // namespace nanotron::model
