#include "nanotron/model/cost.hpp"

namespace nanotron::model {

double training_flops_per_token(const deck::ModelConfig& m, std::int64_t sequence_length) {
  const auto hidden = static_cast<double>(m.hidden_size);
  const auto query = static_cast<double>(m.num_attention_heads * m.head_dim);
  const auto key = static_cast<double>(m.num_key_value_heads * m.head_dim);
  const auto layers = static_cast<double>(m.num_hidden_layers);
  const double layer =
      hidden * (2.0 * query + 2.0 * key) + 3.0 * hidden * static_cast<double>(m.intermediate_size);
  const double matrices = layers * layer + hidden * static_cast<double>(m.vocab_size);
  return 6.0 * matrices + 6.0 * layers * query * (static_cast<double>(sequence_length) + 1.0);
}

}  // namespace nanotron::model
