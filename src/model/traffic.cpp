#include "nanotron/model/traffic.hpp"

#include "nanotron/nn/residual_stream.hpp"

namespace nanotron::model {
namespace {

// Elements of T that one micro-batch brings through the layers, the embedding and the head.
index_t activations_of(const deck::Config& c) {
  const index_t tokens = c.data.micro_batch_size * c.data.sequence_length;
  const index_t layers = c.model.num_hidden_layers, hidden = c.model.hidden_size, ranks = c.parallel.tp;
  const index_t again = c.parallel.recompute == deck::Recompute::full ? layers : 0;
  if (c.parallel.tp_mode == deck::TpMode::all_reduce) return hidden * tokens * (4 * layers + 2 * again + 2);
  const index_t rows = nn::stream_rows(c.parallel.tp_mode, {.tokens = tokens, .tp_size = static_cast<int>(ranks)});
  return hidden * rows * (6 * layers + 2 * again + 2) + hidden * rows * ranks * (4 * layers + 2 * again + 2);
}

index_t partial_gradients(const ParameterTable& table) {
  index_t elements = 0;
  for (const nn::ParameterSpec& spec : table.specs) {
    if (!spec.gradient_is_partial) continue;
    elements += spec.local_layers() * (spec.cut == nn::Cut::none ? spec.local_size() : spec.rows * spec.columns);
  }
  return elements;
}

}  // namespace

StepTraffic step_traffic(const deck::Config& c, const ParameterTable& table) {
  const auto master = static_cast<index_t>(c.precision.compute == ScalarType::fp64 ? sizeof(double) : sizeof(float));
  const index_t tokens = c.data.micro_batch_size * c.data.sequence_length;
  const index_t micro_batches = c.data.global_batch_size / c.parallel.dp / c.data.micro_batch_size;
  StepTraffic traffic;
  if (c.parallel.tp > 1) {
    const auto element = static_cast<index_t>(size_of(c.precision.compute));
    traffic.tensor_parallel = static_cast<std::uint64_t>(
        micro_batches * (element * activations_of(c) + master * 3 * tokens) + master * partial_gradients(table));
  }
  if (c.parallel.dp > 1) traffic.data_parallel = static_cast<std::uint64_t>(master * table.size);
  return traffic;
}

}  // namespace nanotron::model
