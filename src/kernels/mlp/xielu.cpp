#include "nanotron/kernels/mlp/xielu.hpp"

#include <cmath>

#include "kernels/loop/segment_sums.hpp"
#include "nanotron/base/elementary/exponential.hpp"
#include "nanotron/base/elementary/hyperbolic.hpp"
#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

// exp(x) - 1 - x for x <= 0. Near 0 in fp32 by its series, where the difference would have no digits left.
NANOTRON_FUNCTION double excess(double x) { return exponential_minus_one(x) - x; }
NANOTRON_FUNCTION float excess(float x) {
  float p = 2.7557319e-6f * x + 2.4801587e-5f;  // 1 / 9!, 1 / 8!, ...
  p = p * x + 1.9841270e-4f;
  p = p * x + 1.3888889e-3f;
  p = p * x + 8.3333333e-3f;
  p = p * x + 4.1666667e-2f;
  p = p * x + 1.6666667e-1f;
  p = p * x + 0.5f;
  return x > -0.5f ? p * x * x : exponential(x) - 1.0f - x;
}

// In fp32 and fp64 as torch computes it.
template <class M>
NANOTRON_FUNCTION M softplus(M a) {
  return a > M(20) ? a : logarithm_1p(exponential(a));
}
template <class M>
NANOTRON_FUNCTION M sigmoid(M a) {
  return M(1) / (M(1) + exponential(-a));
}

// f, its slope, and what p and n multiply in it.
template <class M>
struct Curve {
  static constexpr M linear = M(0.5), eps = M(-1e-6);
  M p, n;

  NANOTRON_FUNCTION static Curve of(const M* a_p, const M* a_n) { return {softplus(*a_p), linear + softplus(*a_n)}; }
  NANOTRON_FUNCTION static M of_p(M x) { return x > M(0) ? x * x : M(0); }
  NANOTRON_FUNCTION static M of_n(M x) {
    const M m = x < eps ? x : M(eps);
    return x > M(0) ? M(0) : excess(m) + (m - x);
  }
  NANOTRON_FUNCTION M value(M x) const { return p * of_p(x) + n * of_n(x) + linear * x; }
  NANOTRON_FUNCTION M slope(M x) const {
    const M rise = x < eps ? exponential(x) - M(1) : M(-1);
    return (x > M(0) ? M(2) * p * x : n * rise) + linear;
  }
};

SumOrder order_of(const SumOrder& given, index_t columns) {
  return given.block_count == 0 ? SumOrder({{columns, 1}}, 1, 1, 0) : given;
}

// Rows (token segment, shard of columns, token).
RowPieces pieces_of(Processor processor, index_t rows, index_t columns, const ScalarOrder& order) {
  const SumOrder sum = order_of(order.columns, columns);
  const index_t shards = sum.shards_on_rank;
  return {processor, order.token_segments * shards, rows * shards, sum.block_0.extent / sum.shards};
}

template <class T>
Vector<master_t<T>> used_part(const Device& device, const Vector<master_t<T>>& workspace, const Matrix<T>& x,
                              const ScalarOrder& order) {
  const auto rows = static_cast<index_t>(x.extent(0)), columns = static_cast<index_t>(x.extent(1));
  return sums_of_pieces("xielu_backward", workspace, xielu_workspace_size(device.processor(), rows, columns, order));
}

// x <- its gradient, and the sums of da_p, da_n over the pieces.
template <class T>
RowPieces gradient_of_pieces(Device& device, const ActivationScalars<master_t<T>>& a, const Matrix<T>& x,
                             const Matrix<const T>& dh, const Vector<master_t<T>>& sums, const ScalarOrder& given) {
  using M = master_t<T>;
  const auto rows = static_cast<index_t>(x.extent(0)), columns = static_cast<index_t>(x.extent(1));
  const SumOrder order = order_of(given.columns, columns);
  const RowPieces pieces = pieces_of(pieces_on(device), rows, columns, given);
  const index_t of_shard = order.block_0.extent / order.shards;  // so that a team has the same threads on every grid
  for_each_row_with_sums<T>(
      device, "xielu_backward", pieces.count(), of_shard, sums.data(), 2,
      KOKKOS_LAMBDA(const Row& row, const index_t at, M* const of_piece) {
        const index_t segment = at / pieces.pieces, shards = order.shards_on_rank;
        const Range shard = order.terms(0, static_cast<int>(segment % shards));
        const index_t first_token = pieces.first_of(segment - segment % shards) / shards - pieces.first_of(segment);
        const auto curve = Curve<M>::of(a.a_p.data(), a.a_n.data());
        const Range tokens = pieces.of(at);
        M of_p = 0, of_n = 0;
        for (index_t i = tokens.begin; i < tokens.end; ++i) {
          T* const target = x.data() + (first_token + i) * columns + shard.begin;
          const T* const gradient = dh.data() + (first_token + i) * columns + shard.begin;
          of_p += row.template sum_chunks<T>(shard.size(), [=](const index_t c, const auto n) {
            const auto value = load(target + c, n), g = load(gradient + c, n);
            return sum(n, [&](const int k) { return g[k] * Curve<M>::of_p(value[k]); });
          });
          of_n += row.template sum_chunks<T>(shard.size(), [=](const index_t c, const auto n) {
            const auto value = load(target + c, n), g = load(gradient + c, n);
            return sum(n, [&](const int k) { return g[k] * Curve<M>::of_n(value[k]); });
          });
          row.barrier();
          row.template for_each_chunk<T>(shard.size(), [=](const index_t c, const auto n) {
            const auto value = load(target + c, n), g = load(gradient + c, n);
            store(target + c, n, [&](const int k) { return g[k] * curve.slope(value[k]); });
          });
        }
        const M by_p = of_p * sigmoid(*a.a_p.data()), by_n = of_n * sigmoid(*a.a_n.data());
        row.for_each(1, [=](const index_t) { of_piece[0] = by_p, of_piece[1] = by_n; });
      });
  return pieces;
}

}  // namespace

template <class T>
void xielu_forward(Device& device, const ActivationScalars<master_t<T>>& a, Matrix<const T> x, Matrix<T> h) {
  const KernelRegion kernel(device, "xielu_forward", reads(x, a.a_p, a.a_n), writes(h));
  const T* const from = x.data();
  T* const to = h.data();
  for_each_piece<T>(
      device, "xielu_forward", static_cast<index_t>(h.size()),
      KOKKOS_LAMBDA(const Row& row, const index_t first, const index_t count) {
        const T* const source = from + first;
        T* const target = to + first;
        const auto curve = Curve<master_t<T>>::of(a.a_p.data(), a.a_n.data());
        row.template for_each_chunk<T>(count, [=](const index_t i, const auto n) {
          const auto value = load(source + i, n);
          store(target + i, n, [&](const int k) { return curve.value(value[k]); });
        });
      });
}

template <class T>
void xielu_backward(Device& device, const ActivationScalars<master_t<T>>& a, Matrix<T> x, Matrix<const T> dh,
                    Vector<master_t<T>> da_p, Vector<master_t<T>> da_n, Vector<master_t<T>> workspace) {
  using M = master_t<T>;
  const auto sums = used_part<T>(device, workspace, x, {});
  const KernelRegion kernel(device, "xielu_backward", reads(x, dh, a.a_p, a.a_n, sums), writes(x, da_p, da_n, sums));
  const RowPieces pieces = gradient_of_pieces<T>(device, a, x, dh, sums, {});
  add_segment_sums<M>(device, sums.data(), pieces, 1, 2, da_p.data());
  add_segment_sums<M>(device, sums.data() + 1, pieces, 1, 2, da_n.data());
}

template <class T>
Matrix<master_t<T>> xielu_backward_parts(Device& device, const ActivationScalars<master_t<T>>& a, Matrix<T> x,
                                         Matrix<const T> dh, Vector<master_t<T>> workspace, const ScalarOrder& order) {
  const auto sums = used_part<T>(device, workspace, x, order);
  const KernelRegion kernel(device, "xielu_backward", reads(x, dh, a.a_p, a.a_n, sums), writes(x, sums));
  const RowPieces pieces = gradient_of_pieces<T>(device, a, x, dh, sums, order);
  return fold_segments<master_t<T>>(device, sums, pieces, pieces.segments / order.token_segments, 2);
}

index_t xielu_workspace_size(Processor processor, index_t rows, index_t columns, const ScalarOrder& order) {
  return 2 * pieces_of(processor, rows, columns, order).count();
}

#define NANOTRON_INSTANTIATE(T)                                                                                   \
  template void xielu_forward<T>(Device&, const ActivationScalars<master_t<T>>&, Matrix<const T>, Matrix<T>);     \
  template void xielu_backward<T>(Device&, const ActivationScalars<master_t<T>>&, Matrix<T>, Matrix<const T>,     \
                                  Vector<master_t<T>>, Vector<master_t<T>>, Vector<master_t<T>>);                 \
  template Matrix<master_t<T>> xielu_backward_parts<T>(Device&, const ActivationScalars<master_t<T>>&, Matrix<T>, \
                                                       Matrix<const T>, Vector<master_t<T>>, const ScalarOrder&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
