#include "nanotron/nn/preference/pair_losses.hpp"

#include "nanotron/comm/collectives.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::nn {
namespace {

template <class V>
Vector<V> part_of(const Vector<V>& all, index_t part, index_t size) {
  return Vector<V>(all.data() + part * size, size);
}

}  // namespace

// A part is on one rank, and zero on the others, so that its sum over the ranks is exact.
Vector<const double> PairLoss::sums(Device& device, Vector<const double> losses) const {
  const Vector<double>& parts = buffers_.parts;
  kernels::pair_sums(device, rows_, tokens_, losses, parts);
  comm::all_reduce(*cp_, parts.data(), elements_of(parts), comm::ReduceOp::sum, device.stream());
  const index_t shards = tokens_.shards, sequences = elements_of(buffers_.sums) / 2;
  if (shards > 1) {
    kernels::add_column_tree<double>(device, MatrixRef<double>(parts.data(), sequences, shards * 2),
                                     MatrixRef<double>(buffers_.sums.data(), sequences, 2));
  }
  return buffers_.sums;
}

Vector<const double> PairLoss::of(Device& device, Vector<const double> losses) const {
  sums(device, losses);
  kernels::pair_weights(device, rows_, logs(), buffers_.weights);
  return buffers_.weights;
}

void PairLoss::replace(Device& device, Vector<double> losses) const {
  kernels::pair_losses(device, rows_, logs(), losses);
  kernels::pair_rewards(device, rows_, logs(), buffers_.chosen, buffers_.rejected, buffers_.accuracy);
}

PairLosses::PairLosses(const PairSetup& setup, Arena& arena) {
  if (setup.beta == 0.0) return;
  const index_t each = setup.sequences;
  const auto take = [&](index_t size) { return arena.take<double>(MemoryKind::workspace, size); };
  reference_ = take(2 * setup.micro_batches * each);
  const index_t shards = setup.tokens.shards;
  const Vector<double> sums = take(2 * each), parts = shards > 1 ? take(2 * shards * each) : sums,
                       weights = take(each * setup.rows.shard.length());
  for (index_t m = 0; m < setup.micro_batches; ++m) {
    kernels::PairRows rows = setup.rows;
    rows.document_starts = part_of(setup.rows.document_starts, m, each * rows.length);
    of_.emplace_back(setup.beta, rows, setup.tokens, *setup.cp,
                     PairLoss::Buffers{.parts = parts,
                                       .sums = sums,
                                       .weights = weights,
                                       .reference = part_of(reference_, m, 2 * each),
                                       .chosen = part_of(setup.rewards[0], m, each),
                                       .rejected = part_of(setup.rewards[1], m, each),
                                       .accuracy = part_of(setup.rewards[2], m, each)});
  }
}

comm::StepTraffic pair_traffic(const Objective& objective, index_t sequences, int shards, int cp) {
  if (!objective.of_sequences) return {};
  return {.context_parallel =
              comm::all_reduce_bytes(2 * shards * sequences * static_cast<index_t>(sizeof(double)), cp)};
}

}  // namespace nanotron::nn
