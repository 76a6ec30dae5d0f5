#include "nanotron/model/cost.hpp"

namespace nanotron::model {
namespace {

// Elements of a layer's 2-D parameters, with this many networks of its feed-forward block counted.
double layer_matrices(const deck::ModelConfig& m, const deck::FeedForwardSizes& f, std::int64_t networks) {
  const auto hidden = static_cast<double>(m.hidden_size);
  const auto query = static_cast<double>(m.num_attention_heads * m.head_dim);
  const auto key = static_cast<double>(m.num_key_value_heads * m.head_dim);
  const double attention = hidden * (2.0 * query + 2.0 * key);
  const double projections = m.is_gated() ? 3.0 : 2.0;
  return attention + hidden * static_cast<double>(f.routed_outputs) +
         projections * hidden * static_cast<double>(networks * f.width.size + f.shared_width.size);
}

// Twice the mean number of keys per query.
double keys_met(const deck::ModelConfig& m, std::int64_t sequence_length) {
  const auto s = static_cast<double>(sequence_length), w = static_cast<double>(m.sliding_window);
  return w > 0.0 && w < s ? 2.0 * w - w * (w - 1.0) / s : s + 1.0;
}

double word_matrix(const deck::ModelConfig& m) {
  return static_cast<double>(m.hidden_size) * static_cast<double>(m.vocab_size);
}

}  // namespace

BlockCosts block_flops(const deck::ModelConfig& m, std::int64_t sequence_length) {
  const auto query = static_cast<double>(m.num_attention_heads * m.head_dim);
  const deck::FeedForwardSizes f = deck::feed_forward_sizes(m);
  return {.embedding = 0.0,
          .layer = 6.0 * layer_matrices(m, f, f.networks_per_token) + 6.0 * query * keys_met(m, sequence_length),
          .head = 6.0 * word_matrix(m)};
}

BlockCosts block_parameters(const deck::ModelConfig& m) {
  const double positions = static_cast<double>(m.hidden_size) * static_cast<double>(m.max_position_embeddings);
  const deck::FeedForwardSizes f = deck::feed_forward_sizes(m);
  return {.embedding = word_matrix(m) + positions, .layer = layer_matrices(m, f, f.networks), .head = word_matrix(m)};
}

double training_flops_per_token(const deck::ModelConfig& m, std::int64_t sequence_length) {
  const BlockCosts flops = block_flops(m, sequence_length);
  return flops.embedding + static_cast<double>(m.num_hidden_layers) * flops.layer + flops.head;
}

}  // namespace nanotron::model
