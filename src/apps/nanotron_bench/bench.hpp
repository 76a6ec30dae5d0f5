#pragma once

// The input of every part of the benchmark, and the buffers it measures on.

#include <string>

#include "command_line.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/micro_batch.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/model/layers/activations.hpp"
#include "repeat.hpp"
#include "report.hpp"

namespace nanotron::apps::bench {

struct Bench {
  const Options& options;
  const deck::Config& config;
  comm::ProcessGrid& grid;
  Report& report;

  model::ParameterTable table() const {
    return model::make_parameter_table(config.model, {.tp_size = grid.shape().tp,
                                                      .tp_rank = grid.tp_rank(),
                                                      .tp_mode = config.parallel.tp_mode,
                                                      .ep_spans_tp = grid.shape().ep_spans_tp});
  }
  // Of a micro-batch on this rank.
  model::LocalSizes sizes() const {
    const index_t tokens = deck::sequences_at_once(config) * config.data.sequence_length;
    return model::local_sizes(config.model, table(), tokens,
                              nn::hidden_rows(config.parallel.tp_mode, {.tokens = tokens, .tp_size = grid.shape().tp}));
  }
  // Of a step on this rank.
  std::int64_t micro_batches() const {
    return config.data.global_batch_size / grid.shape().dp / deck::sequences_at_once(config);
  }
};

// Small numbers of both signs.
template <class T>
void fill_pattern(const Kokkos::View<T*, MemorySpace>& memory) {
  Kokkos::parallel_for(
      "bench_fill", kernels::RangePolicy(0, static_cast<index_t>(memory.size())),
      KOKKOS_LAMBDA(const index_t i) { memory(i) = static_cast<T>(static_cast<float>(i * 37 % 101) / 101.0f - 0.5f); });
  Kokkos::fence();
}

// Device memory, filled by fill_pattern().
template <class T>
class Buffer {
 public:
  explicit Buffer(index_t n) : memory_("nanotron_bench", static_cast<std::size_t>(std::max<index_t>(n, 1))) {
    fill_pattern(memory_);
  }
  T* data() const { return memory_.data(); }
  Vector<T> vector(index_t n) const { return Vector<T>(memory_.data(), n); }
  Matrix<T> matrix(index_t rows, index_t columns) const { return Matrix<T>(memory_.data(), rows, columns); }

 private:
  Kokkos::View<T*, MemorySpace> memory_;
};

}  // namespace nanotron::apps::bench
