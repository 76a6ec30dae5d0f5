#include "nanotron/nn/preference/pair_losses.hpp"

#include "nanotron/comm/collectives.hpp"

namespace nanotron::nn {
namespace {

template <class V>
Vector<V> part_of(const Vector<V>& all, index_t part, index_t size) {
  return Vector<V>(all.data() + part * size, size);
}

}  // namespace

Vector<const double> PairLoss::sums(Device& device, Vector<const double> losses) const {
  kernels::pair_sums(device, rows_, losses, buffers_.sums);
  comm::all_reduce(*cp_, buffers_.sums.data(), elements_of(buffers_.sums), comm::ReduceOp::sum, device.stream());
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
  const Vector<double> sums = take(2 * each), weights = take(each * setup.rows.shard.length());
  for (index_t m = 0; m < setup.micro_batches; ++m) {
    kernels::PairRows rows = setup.rows;
    rows.document_starts = part_of(setup.rows.document_starts, m, each * rows.length);
    of_.emplace_back(setup.beta, rows, *setup.cp,
                     PairLoss::Buffers{.sums = sums,
                                       .weights = weights,
                                       .reference = part_of(reference_, m, 2 * each),
                                       .chosen = part_of(setup.rewards[0], m, each),
                                       .rejected = part_of(setup.rewards[1], m, each),
                                       .accuracy = part_of(setup.rewards[2], m, each)});
  }
}

comm::StepTraffic pair_traffic(const Objective& objective, index_t sequences, int cp) {
  if (!objective.of_sequences) return {};
  return {.context_parallel = comm::all_reduce_bytes(2 * sequences * static_cast<index_t>(sizeof(double)), cp)};
}

}  // namespace nanotron::nn
