#pragma once

// The backends that gemm.cpp calls: gemm_host.cpp (BLAS, oneDNN); gemm_gpu.cpp over gemm_cuda.cpp (cuBLASLt, cuBLAS)
// or gemm_hip.cpp (hipBLASLt, rocBLAS), which share lt/.

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"

namespace nanotron::kernels::detail {

// One GEMM. m, n, k > 0 and match the operands.
struct GemmProblem {
  Op op_a = Op::none, op_b = Op::none;
  index_t m = 0, n = 0, k = 0;
  index_t leading_a = 0, leading_b = 0, leading_c = 0;
  double alpha = 1, beta = 0;
  friend bool operator==(const GemmProblem&, const GemmProblem&) = default;
};

// gemm_host.cpp, gemm_gpu.cpp
template <class T, class C>
void multiply(Device& device, const GemmProblem& problem, const T* a, const T* b, C* c);

// gemm_cuda.cpp, gemm_hip.cpp
// C = alpha op(A) op(B) + beta D; D and C have the same leading dimension, and may be the same.
template <class T, class C>
void multiply_plus(Device& device, const GemmProblem& problem, const T* a, const T* b, const C* d, C* c);

// gemm_fixed_order_host.cpp, gemm_fixed_order_gpu.cpp
template <class T, class C>
void multiply_in_order(Device& device, const GemmProblem& problem, const SumOrder& order, const T* a, const T* b, C* c);
template <class T, class C>
void multiply_batch_in_order(Device& device, const GemmProblem& problem, const T* const* a, const T* const* b,
                             C* const* c, index_t count);
template <class T>
std::size_t fixed_order_workspace_bytes(index_t k);
// gemm_host.cpp, gemm_cuda.cpp, gemm_hip.cpp
/// alignment: of all pointers, in bytes.
template <class T, class C>
void multiply_batch(Device& device, const GemmProblem& problem, std::size_t alignment, const T* const* a,
                    const T* const* b, C* const* c, index_t count);
// Of the host only.
template <class T>
std::size_t library_workspace_bytes(index_t m, index_t n, index_t k);

/// The types of GEMMs: T of A and B, C of C. The second ends gemm_cuda.cpp and gemm_hip.cpp.
#define NANOTRON_FOR_GEMM_TYPES(macro) macro(double, double) macro(float, float) macro(bf16, bf16) macro(bf16, float)
#define NANOTRON_INSTANTIATE_LIBRARY_GEMM(T, C)                                                                  \
  template void multiply_plus<T, C>(Device&, const GemmProblem&, const T*, const T*, const C*, C*);              \
  template void multiply_batch<T, C>(Device&, const GemmProblem&, std::size_t, const T* const*, const T* const*, \
                                     C* const*, index_t);

/// Of the measured GEMM peak: orders of the matrices, and max GEMMs between two fences.
struct PeakShape {
  index_t smallest, largest;
  int per_fence;
};
PeakShape peak_shape();

// GEMM in a fixed order of k: what host/ and gpu/ share.

/// `order`, or one shard of `depth` terms if it is empty. Error (system_error) if it is not for `depth` terms.
inline SumOrder order_or_whole(const SumOrder& order, index_t depth) {
  if (order.block_count == 0) return SumOrder({{depth, 1}}, 1, 1, 0);
  NANOTRON_REQUIRE(order.size() == depth && order.shards_on_rank < (1 << (TreeStack::depth - 1)),
                   "a sum over {} terms in an order for {}, {} shards", depth, order.size(), order.shards_on_rank);
  return order;
}

/// Where the sum of an element begins.
enum class Begin { at_zero, at_c };

/// A batched GEMM that adds to C continues its sums: the order is that of one GEMM over the terms of all calls. In bf16
/// all calls but the last have a multiple of 32 terms (pair_order.hpp).
/// Error (system_error) if it adds something else than A B + C.
inline Begin begin_of_batch(const GemmProblem& p) {
  if (p.beta == 0) return Begin::at_zero;
  NANOTRON_REQUIRE(p.alpha == 1 && p.beta == 1, "a batched GEMM in order with alpha {}, beta {}", p.alpha, p.beta);
  return Begin::at_c;
}

// The functions of gemm_backend.hpp that a backend of this kind defines, for all types.
#define NANOTRON_INSTANTIATE_GEMM(T, C)                                                                        \
  template void multiply_in_order<T, C>(Device&, const GemmProblem&, const SumOrder&, const T*, const T*, C*); \
  template void multiply_batch_in_order<T, C>(Device&, const GemmProblem&, const T* const*, const T* const*,   \
                                              C* const*, index_t);
#define NANOTRON_INSTANTIATE_FIXED_ORDER NANOTRON_FOR_GEMM_TYPES(NANOTRON_INSTANTIATE_GEMM)

}  // namespace nanotron::kernels::detail
