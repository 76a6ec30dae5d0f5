#include "model_summary.hpp"

#include <fmt/format.h>

#include "nanotron/model/cost.hpp"
#include "nanotron/trainer/training_state.hpp"

namespace nanotron::trainer {
namespace {

// 8030.26e6, "FLOP" -> "8.03 GFLOP".
std::string with_prefix(double value, const char* unit) {
  constexpr const char* prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t p = 0;
  for (; value >= 1000.0 && p + 1 < std::size(prefixes); ++p) value /= 1000.0;
  return fmt::format("{:.2f} {}{}", value, prefixes[p], unit);
}

}  // namespace

std::string model_summary(const deck::Config& c) {
  const model::ParameterTable table = model::make_parameter_table(c.model, 1, 0);
  const double flops = model::training_flops_per_token(c.model, c.data.sequence_length);
  const auto parameters = static_cast<double>(table.logical_parameters());
  return fmt::format(
      "model: {} layers, hidden {}, {} heads ({} key-value) of {}, ffn {}, vocabulary {}: {} parameters\n"
      "batch: {} sequences of {} tokens a step ({} a micro-batch), {} a token, {} a step\n"
      "compute: {}, recompute {}",
      c.model.num_hidden_layers, c.model.hidden_size, c.model.num_attention_heads,
      c.model.num_key_value_heads, c.model.head_dim, c.model.intermediate_size, c.model.vocab_size,
      parameters < 1e9 ? fmt::format("{:.2f} million", parameters / 1e6) : fmt::format("{:.2f} billion", parameters / 1e9),
      c.data.global_batch_size, c.data.sequence_length, c.data.micro_batch_size,
      with_prefix(flops, "FLOP"), with_prefix(flops * static_cast<double>(tokens_per_step(c)), "FLOP"), name_of(c.precision.compute),
      c.parallel.recompute == deck::Recompute::none        ? "none"
      : c.parallel.recompute == deck::Recompute::selective ? "selective"
                                                           : "full");
}

}  // namespace nanotron::trainer
