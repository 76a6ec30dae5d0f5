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
  const deck::FeedForwardSizes sizes = deck::feed_forward_sizes(m);
  const std::int64_t widest_network = std::max(sizes.width.size, m.intermediate_size);
  const double width =
      real(sizes.networks) * real(widest_network) + (sizes.is_routed() ? real(sizes.shared_width.size) : 0.0);
  const double layer = real(m.hidden_size) * (4 * attention + 3 * width);
  const double parameters = real(m.num_hidden_layers) * layer +
                            (2 * real(m.vocab_size) + real(m.max_position_embeddings)) * real(m.hidden_size);
  if (parameters > limit) {
    f.error({"model.hidden_size", "model.intermediate_size"}, "the model has more than 1e15 parameters",
            "sizes that a machine can hold");
  }
  const double tokens = real(c.data.sequence_length) * real(c.data.micro_batch_size);
  const double routed = !sizes.is_routed() ? 0.0
                                           : real(c.parallel.ep) * real(sizes.networks_per_token) *
                                                 std::max(real(m.hidden_size), 2 * real(widest_network));
  const double widest = std::max({real(m.hidden_size), 3 * attention, 2 * real(m.intermediate_size), routed});
  if (tokens * widest * real(m.num_hidden_layers) > limit ||
      real(c.data.sequence_length) * real(c.data.global_batch_size) > limit) {
    f.error({"data.sequence_length", "data.micro_batch_size", "data.global_batch_size"},
            "a batch has more than 1e15 activations", "fewer or shorter sequences");
  }
}

}  // namespace nanotron::model
