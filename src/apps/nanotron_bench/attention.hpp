#pragma once

#include <vector>

#include "bench.hpp"
#include "nanotron/deck/machine.hpp"
#include "nanotron/kernels/attention/attention.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"

namespace nanotron::apps::bench {

// GEMM workspace of a model; attention needs it too.
template <class T>
std::size_t gemm_workspace_bytes(const model::LocalSizes& s) {
  return std::max(
      kernels::gemm_workspace_bytes<T>(GemmMode::library, built_for, s.tokens, 2 * s.intermediate, s.hidden),
      kernels::gemm_workspace_bytes<T>(GemmMode::library, built_for, s.tokens, s.vocabulary, s.hidden));
}

// Causal attention on buffers of its own, for one shape.
template <class T>
class AttentionBench {
 public:
  AttentionBench(Device& device, const kernels::AttentionShape& shape);

  // Two GEMMs, of which causal attention computes half. Backward has five.
  double forward_flops() const;
  double backward_flops() const { return 2.5 * forward_flops(); }
  void forward();
  void backward(kernels::BackwardAlgorithm algorithm);

 private:
  index_t tokens() const { return shape_.batch * shape_.query_length; }
  index_t query_width() const { return shape_.query_heads * shape_.head_dim; }
  index_t key_width() const { return shape_.key_heads * shape_.head_dim; }
  // Columns of q, k or v, in the order of one fused buffer.
  struct Columns {
    MatrixRef<T> q, k, v;
  };
  Columns columns_of(const Buffer<T>& all) const;

  Device& device_;
  kernels::AttentionShape shape_;
  Buffer<T> qkv_, gradient_, out_, dout_;
  Buffer<master_t<T>> lse_;
  Kokkos::View<std::byte*, MemorySpace> workspace_;
};

// The attention of the deck on this rank.
kernels::AttentionShape attention_shape(const Bench& bench);

// Rows of &attention of a machine's file: heads of 64 and 128, sequences of 2048 to 16,384 tokens, with the deck's
// numbers of heads on a GPU; on a host the deck's shape alone. Collective.
std::vector<deck::AttentionRate> attention_rates(const Bench& bench, ScalarType type);

}  // namespace nanotron::apps::bench
