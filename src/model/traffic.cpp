#include "nanotron/model/traffic.hpp"

#include <algorithm>
#include <array>

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

// Elements that tensor-parallel ranks hold parts of: sum[0] of vectors, sum[1] of matrices.
std::array<index_t, 2> partial_gradients(const ParameterTable& table) {
  std::array<index_t, 2> sum{};
  for (const nn::ParameterSpec& spec : table.specs) {
    if (!spec.gradient_is_partial) continue;
    sum[spec.is_vector ? 0 : 1] +=
        spec.local_layers() * (spec.cut == nn::Cut::none ? spec.local_size() : spec.rows * spec.columns);
  }
  return sum;
}

// Elements of the units a step gathers in stage 3. Two layers stay in their slots from forward to backward and from
// backward to the next forward; embedding and head change places, unless they are one.
index_t gathered_per_use(const ParameterTable& table, index_t layers, index_t micro_batches) {
  const index_t times = layers + (2 * micro_batches - 1) * std::max<index_t>(0, layers - 2);
  const auto size = [&](index_t unit) { return table.units[static_cast<std::size_t>(unit)].range.size(); };
  const index_t outer = table.head_unit() == table.embedding_unit()
                            ? size(table.embedding_unit())
                            : micro_batches * (size(table.embedding_unit()) + size(table.head_unit()));
  return outer + times * size(table.layer_unit(0));
}

// Bytes over the ranks that hold the same parameters.
index_t over_replicas(const deck::Config& c, const ParameterTable& table, index_t master, index_t micro_batches) {
  const index_t replicas = c.parallel.dp * c.parallel.cp, shards = table.shards, stage = c.parallel.zero_stage;
  if (replicas == 1) return 0;
  if (shards == 1) return master * table.size;
  const index_t matrices = table.size - table.vectors.size();
  const index_t gathered =
      stage == 3 ? gathered_per_use(table, c.model.num_hidden_layers, micro_batches) : matrices;
  const index_t copies = shards < replicas ? matrices / shards : 0;
  return master * (table.vectors.size() + (stage == 1 ? 1 : micro_batches) * matrices + copies) +
         static_cast<index_t>(size_of(c.precision.compute)) * gathered / shards;
}

}  // namespace

StepTraffic step_traffic(const deck::Config& c, const ParameterTable& table) {
  const auto master = static_cast<index_t>(c.precision.compute == ScalarType::fp64 ? sizeof(double) : sizeof(float));
  const index_t tokens = c.data.micro_batch_size * c.data.sequence_length;
  const index_t micro_batches = c.data.global_batch_size / c.parallel.dp / c.data.micro_batch_size;
  StepTraffic traffic;
  if (c.parallel.tp > 1) {
    const auto element = static_cast<index_t>(size_of(c.precision.compute));
    const auto [vectors, matrices] = partial_gradients(table);
    const index_t sums = table.shards > 1 && c.parallel.zero_stage > 1 ? micro_batches : 1;
    traffic.tensor_parallel = static_cast<std::uint64_t>(
        micro_batches * (element * activations_of(c) + master * 3 * tokens) + master * (vectors + sums * matrices));
  }
  traffic.data_parallel = static_cast<std::uint64_t>(over_replicas(c, table, master, micro_batches));
  return traffic;
}

}  // namespace nanotron::model
