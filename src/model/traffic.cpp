#include "nanotron/model/traffic.hpp"

#include "nanotron/nn/attention_core.hpp"
#include "nanotron/nn/residual_stream.hpp"

namespace nanotron::model {
namespace {

// Elements of T that one micro-batch brings through the layers, the embedding and the head.
index_t activations_of(const deck::Config& c, index_t tokens) {
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

// Bytes that one micro-batch's attention sends.
index_t attention_bytes_of(const deck::Config& c, const nn::ContextShard& context, const nn::HeadShard& heads,
                           index_t element, index_t master) {
  const nn::CoreTraffic core = nn::core_traffic(context, heads, c.model.head_dim, c.data.micro_batch_size);
  const index_t forwards = c.parallel.recompute == deck::Recompute::full ? 2 : 1;
  return c.model.num_hidden_layers *
         (element * (forwards * core.forward + core.backward) + master * core.backward_master);
}

}  // namespace

StepTraffic step_traffic(const deck::Config& c, const ParameterTable& table, int cp_rank) {
  const auto element = static_cast<index_t>(size_of(c.precision.compute));
  const auto master = static_cast<index_t>(c.precision.compute == ScalarType::fp64 ? sizeof(double) : sizeof(float));
  const nn::ContextShard context{
      c.parallel.cp_mode,
      SequenceLayout(c.parallel.cp_mode, c.data.sequence_length, static_cast<int>(c.parallel.cp)), cp_rank};
  const index_t tokens = c.data.micro_batch_size * context.tokens().length();
  const index_t micro_batches = c.data.global_batch_size / c.parallel.dp / c.data.micro_batch_size;
  StepTraffic traffic;
  if (c.parallel.tp > 1) {
    traffic.tensor_parallel = static_cast<std::uint64_t>(
        micro_batches * (element * activations_of(c, tokens) + master * 3 * tokens) + master * partial_gradients(table));
  }
  traffic.context_parallel =
      static_cast<std::uint64_t>(micro_batches * attention_bytes_of(c, context, table.heads, element, master));
  if (c.parallel.dp * c.parallel.cp > 1) traffic.data_parallel = static_cast<std::uint64_t>(master * table.size);
  return traffic;
}

}  // namespace nanotron::model
