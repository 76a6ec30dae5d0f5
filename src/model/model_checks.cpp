#include "nanotron/model/model_checks.hpp"

#include <algorithm>

#include "nanotron/deck/config.hpp"

namespace nanotron::model {

void check_size(const deck::Config& c, deck::Findings& f) {
  constexpr double limit = 1e15;
  const auto real = [](std::int64_t n) { return static_cast<double>(std::max<std::int64_t>(n, 1)); };
  const deck::ModelConfig& m = c.model;
  const double head_dim = m.head_dim > 0 ? real(m.head_dim) : real(m.hidden_size) / real(m.num_attention_heads);
  const double attention = real(m.num_attention_heads) * head_dim;
  const double width =
      m.moe.num_experts == 0
          ? real(m.intermediate_size)
          : real(m.moe.num_experts) * real(std::max(m.moe.moe_intermediate_size, m.intermediate_size)) +
                real(m.moe.shared_expert_intermediate_size);
  const double layer = real(m.hidden_size) * (4 * attention + 3 * width);
  const double parameters = real(m.num_hidden_layers) * layer +
                            (2 * real(m.vocab_size) + real(m.max_position_embeddings)) * real(m.hidden_size);
  if (parameters > limit) {
    f.error({"model.hidden_size", "model.intermediate_size"}, "the model has more than 1e15 parameters",
            "sizes that a machine can hold");
  }
  const double tokens = real(c.data.sequence_length) * real(c.data.micro_batch_size);
  const double of_expert =
      std::max(real(m.hidden_size), 2 * real(std::max(m.moe.moe_intermediate_size, m.intermediate_size)));
  const double experts = m.moe.num_experts == 0 ? 0 : real(c.parallel.ep) * real(m.moe.num_experts_per_tok) * of_expert;
  const double widest = std::max({real(m.hidden_size), 3 * attention, 2 * real(m.intermediate_size), experts});
  if (tokens * widest * real(m.num_hidden_layers) > limit ||
      real(c.data.sequence_length) * real(c.data.global_batch_size) > limit) {
    f.error({"data.sequence_length", "data.micro_batch_size", "data.global_batch_size"},
            "a batch has more than 1e15 activations", "fewer or shorter sequences");
  }
}

}  // namespace nanotron::model
