#include "model_summary.hpp"

#include <fmt/format.h>

#include "nanotron/data/order/batch_ramp.hpp"
#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/deck/layer_recompute.hpp"
#include "nanotron/model/adapters/adapters.hpp"
#include "nanotron/model/cost.hpp"
#include "nanotron/nn/attention/score_map.hpp"
#include "nanotron/nn/dropout/dropout.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {
namespace {

// 8030.26e6, "FLOP" -> "8.03 GFLOP".
std::string with_prefix(double value, const char* unit) {
  constexpr const char* prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t p = 0;
  for (; value >= 1000.0 && p + 1 < std::size(prefixes); ++p) value /= 1000.0;
  return fmt::format("{:.2f} {}{}", value, prefixes[p], unit);
}

std::string count_text(double parameters) {
  return parameters < 1e9 ? fmt::format("{:.2f} million", parameters / 1e6)
                          : fmt::format("{:.2f} billion", parameters / 1e9);
}

// Without the networks that a token is not routed to.
double active_parameters(const deck::ModelConfig& m, double all) {
  const deck::FeedForwardSizes f = deck::feed_forward_sizes(m);
  const auto idle = static_cast<double>(f.networks - f.networks_per_token);
  return all - static_cast<double>(3 * deck::routed_layer_count(m) * m.hidden_size * f.width.size) * idle;
}

std::string parameters_text(const deck::Config& c) {
  const deck::ModelConfig& m = c.model;
  const auto all = static_cast<double>(model::make_parameter_table(m).logical_parameters());
  const std::string active =
      deck::feed_forward_sizes(m).is_routed() ? fmt::format(", {} active", count_text(active_parameters(m, all))) : "";
  const double trained = model::adapter_parameters(c);
  const std::string frozen =
      trained > 0.0 ? fmt::format(" are frozen, adapters of {} are trained", count_text(trained)) : "";
  return count_text(all) + " parameters" + active + frozen;
}

// A line about the batch-size ramp; empty without one.
std::string ramp_text(const deck::Config& c) {
  const deck::DataConfig& d = c.data;
  if (d.rampup_batch_size == 0) return "";
  const data::BatchRamp ramp(d);
  const index_t samples = ramp.after(0, c.run.steps);
  const auto tokens = static_cast<double>(samples) * static_cast<double>(d.sequence_length);
  return fmt::format(
      "batch-size ramp: from {} sequences by {} to {} in {} steps; the {} steps of the run take {} samples, "
      "{:.4g} tokens\n",
      d.rampup_batch_size, d.rampup_increment, d.global_batch_size, ramp.steps(), c.run.steps, samples, tokens);
}

}  // namespace

std::string model_summary(const deck::Config& c) {
  const double flops = model::training_flops_per_token(c);
  return fmt::format(
      "model: {} layers, hidden {}, {} heads ({} key-value) of {}, {}, vocabulary {}: {}\n{}"
      "batch: {} sequences of {} tokens per step ({} per micro-batch), {} per token, {} per step\n{}"
      "compute: {}, recompute {}\n"
      "keys that are not at their defaults:\n{}",
      c.model.num_hidden_layers, c.model.hidden_size, c.model.num_attention_heads, c.model.num_key_value_heads,
      c.model.head_dim, feed_forward_text(c), c.model.vocab_size, parameters_text(c), feed_forward_losses_text(c),
      c.data.global_batch_size, c.data.sequence_length, c.data.micro_batch_size, with_prefix(flops, "FLOP"),
      with_prefix(flops * static_cast<double>(tokens_per_step(c)), "FLOP"), ramp_text(c), name_of(c.precision.compute),
      deck::recompute_text(c.parallel, c.model.num_hidden_layers), deck::changed_keys(c));
}

kernels::AttentionShape one_head(const deck::Config& config) {
  const index_t length = config.data.sequence_length;
  const bool has_documents = config.data.document_mask != deck::DocumentMask::none;
  return {.batch = 1,
          .query_length = length,
          .key_length = length,
          .query_heads = 1,
          .key_heads = 1,
          .head_dim = config.model.head_dim,
          .document_stride = has_documents ? length : 0,
          .backward = attention_backward_of(config),
          .documents = 1,
          .scores = nn::score_map(config.model),
          .mask = nn::probability_mask_in_training(config.model)};
}

}  // namespace nanotron::trainer
