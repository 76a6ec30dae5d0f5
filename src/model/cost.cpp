#include "nanotron/model/cost.hpp"

#include <algorithm>

#include "nanotron/deck/attention_sizes.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/model/adapters/adapters.hpp"

namespace nanotron::model {
namespace {

// Elements of a layer's 2-D parameters, with this many networks of its feed-forward block counted.
double layer_matrices(const deck::ModelConfig& m, const deck::FeedForwardSizes& f, std::int64_t networks) {
  const auto hidden = static_cast<double>(m.hidden_size);
  const double projections = m.is_gated() ? 3.0 : 2.0;
  return deck::attention_sizes(m).matrices + hidden * static_cast<double>(f.routed_outputs) +
         projections * hidden * static_cast<double>(networks * f.width.size + f.shared_width.size);
}

// Twice the mean number of keys per query.
double keys_met(const deck::LayerKind& kind, std::int64_t sequence_length) {
  const auto s = static_cast<double>(sequence_length), w = static_cast<double>(kind.window);
  return w > 0.0 && w < s ? 2.0 * w - w * (w - 1.0) / s : s + 1.0;
}

double word_matrix(const deck::ModelConfig& m) {
  return static_cast<double>(m.hidden_size) * static_cast<double>(m.vocab_size);
}

double matrix_of_appended(const deck::ModelConfig& m) {
  return 2.0 * static_cast<double>(m.hidden_size) * static_cast<double>(m.hidden_size);
}

}  // namespace

double LayerCosts::sum(std::int64_t begin, std::int64_t end) const {
  if (kinds_.empty()) return static_cast<double>(end - begin) * of_kind_.front();
  double sum = 0.0;
  for (std::size_t k = 0; k < of_kind_.size(); ++k) {
    sum += static_cast<double>(kinds_.front().count(k, begin, end)) * of_kind_[k];
  }
  return sum;
}

BlockCosts with_appended(BlockCosts costs, const deck::ModelConfig& m, double besides) {
  const double layer = costs.layers.sum(m.num_hidden_layers - 1, m.num_hidden_layers);
  costs.head += static_cast<double>(deck::appended_layers(m)) * (layer + besides);
  return costs;
}

namespace {

// each: FLOPs for each element of a 2-D parameter; in_layer: for more in each layer.
BlockCosts block_flops(const deck::ModelConfig& m, std::int64_t sequence_length, double each, double in_layer) {
  const deck::AttentionSizes a = deck::attention_sizes(m);
  const auto query_value = static_cast<double>(m.num_attention_heads * (a.head_dim + a.value_dim));
  const deck::LayerKinds kinds(m);
  std::vector<double> of_kind;
  for (const deck::LayerKind& kind : kinds.all()) {
    const deck::FeedForwardSizes f = deck::feed_forward_sizes(m, kind);
    of_kind.push_back(each * layer_matrices(m, f, f.networks_per_token) +
                      3.0 * query_value * keys_met(kind, sequence_length) + in_layer);
  }
  return with_appended({0.0, LayerCosts(kinds, std::move(of_kind)), each * word_matrix(m)}, m,
                       each * (matrix_of_appended(m) + word_matrix(m)));
}

double sum_of(const BlockCosts& costs, const deck::ModelConfig& m) {
  return costs.embedding + costs.layers.sum(0, m.num_hidden_layers) + costs.head;
}

}  // namespace

BlockCosts block_flops(const deck::ModelConfig& m, std::int64_t sequence_length) {
  return block_flops(m, sequence_length, 6.0, 0.0);
}

BlockCosts block_flops(const deck::Config& c) {
  const double adapters = adapter_parameters(c), layers = static_cast<double>(c.model.num_hidden_layers);
  if (adapters == 0.0) return block_flops(c.model, c.data.sequence_length);
  return block_flops(c.model, c.data.sequence_length, 4.0, 6.0 * adapters / layers);
}

BlockCosts block_parameters(const deck::ModelConfig& m) {
  const double positions = static_cast<double>(m.hidden_size) * static_cast<double>(m.max_position_embeddings);
  const deck::LayerKinds kinds(m);
  std::vector<double> of_kind;
  for (const deck::LayerKind& kind : kinds.all()) {
    const deck::FeedForwardSizes f = deck::feed_forward_sizes(m, kind);
    of_kind.push_back(layer_matrices(m, f, f.networks));
  }
  BlockCosts costs = with_appended({word_matrix(m) + positions, LayerCosts(kinds, std::move(of_kind)), word_matrix(m)},
                                   m, matrix_of_appended(m));
  if (deck::appended_layers(m) > 0 && !m.tie_word_embeddings) costs.head += word_matrix(m);
  return costs;
}

double training_flops_per_token(const deck::ModelConfig& m, std::int64_t sequence_length) {
  return sum_of(block_flops(m, sequence_length), m);
}

double training_flops_per_token(const deck::Config& c) { return sum_of(block_flops(c), c.model); }

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
