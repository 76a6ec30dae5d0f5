#include <cmath>

#include "kernels/gemm/gemm_backend.hpp"
#include "kernels/gemm/pair_order.hpp"
#include "nanotron/kernels/loop/loop.hpp"

// GEMM in a fixed order of summation, whatever the shape: one thread per element of C. The orders are those of
// host/gemm_fixed_order_host.cpp.

namespace nanotron::kernels::detail {
namespace {

enum class Terms { chain, pairs };

// sum += the products of factors a(k) and b(k) in the range.
template <Terms order, class M, class A, class B>
NANOTRON_FUNCTION M add_terms(M sum, const Range& range, const A& a, const B& b) {
  if constexpr (order == Terms::chain) {
    for (index_t k = range.begin; k < range.end; ++k) sum = std::fma(a(k), b(k), sum);
  } else {
    for (index_t k = range.begin; k < range.end; k += pair_terms) {
      const index_t left = range.end - k;
      const M pairs = sum_of_pairs(
          left < pair_terms ? left : pair_terms, [&](index_t i) { return a(k + i); },
          [&](index_t i) { return b(k + i); });
      sum = add_flushed(sum, pairs);
    }
  }
  return sum;
}

// begin: of the first shard's sum.
template <Terms kind, class T, class C>
NANOTRON_FUNCTION void multiply_element(const GemmProblem& p, const SumOrder& order, Begin begin, const T* a,
                                        const T* b, C* c, index_t i, index_t j) {
  using M = master_t<T>;
  const index_t a_row = p.op_a == Op::none ? p.leading_a : 1, a_k = p.op_a == Op::none ? 1 : p.leading_a;
  const index_t b_column = p.op_b == Op::none ? 1 : p.leading_b, b_k = p.op_b == Op::none ? p.leading_b : 1;
  M stack[TreeStack::depth] = {};
  const auto add = [&](int into, int from) { stack[into] = static_cast<M>(static_cast<C>(stack[into] + stack[from])); };
  C& target = c[i * p.leading_c + j];
  TreeStack tree;
  for (int s = 0; s < order.shards_on_rank; ++s) {
    M sum = begin == Begin::at_c ? static_cast<M>(target) : M(0);
    if constexpr (kind == Terms::pairs) sum = flushed(sum);
    for (int block = 0; block < order.block_count; ++block) {
      sum = add_terms<kind>(
          sum, order.terms(block, s), [=](index_t k) { return static_cast<M>(a[i * a_row + k * a_k]); },
          [=](index_t k) { return static_cast<M>(b[k * b_k + j * b_column]); });
    }
    stack[tree.top()] = static_cast<M>(static_cast<C>(sum));
    tree.push(add);
  }
  tree.finish(add);
  const M alpha = static_cast<M>(p.alpha), beta = static_cast<M>(p.beta);
  target =
      static_cast<C>(p.beta == 0 || begin == Begin::at_c ? alpha * stack[0]
                                                         : std::fma(alpha, stack[0], beta * static_cast<M>(target)));
}

template <class T>
inline constexpr Terms terms_of = std::is_same_v<T, bf16> ? Terms::pairs : Terms::chain;

}  // namespace

template <class T, class C>
void multiply_in_order(Device& device, const GemmProblem& p, const SumOrder& given, const T* a, const T* b, C* c) {
  const SumOrder order = order_or_whole(given, p.k);
  for_each_element(
      device, "gemm_in_order", p.m * p.n, KOKKOS_LAMBDA(const index_t i) {
        multiply_element<terms_of<T>, T, C>(p, order, Begin::at_zero, a, b, c, i / p.n, i % p.n);
      });
}

template <class T, class C>
void multiply_batch_in_order(Device& device, const GemmProblem& p, const T* const* a, const T* const* b, C* const* c,
                             index_t count) {
  const SumOrder order = order_or_whole({}, p.k);
  const Begin begin = begin_of_batch(p);
  const index_t each = p.m * p.n;
  for_each_element(
      device, "gemm_in_order", count * each, KOKKOS_LAMBDA(const index_t at) {
        const index_t i = at / each, element = at % each;
        multiply_element<terms_of<T>, T, C>(p, order, begin, a[i], b[i], c[i], element / p.n, element % p.n);
      });
}

NANOTRON_INSTANTIATE_FIXED_ORDER

}  // namespace nanotron::kernels::detail
