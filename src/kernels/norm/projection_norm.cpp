#include "nanotron/kernels/norm/projection_norm.hpp"

#include <cmath>

#include "kernels/loop/segment_sums.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

// Sum of f(column).
template <class M, class AnyRow, class F>
NANOTRON_FUNCTION M sum_in(const SumOrder& order, const AnyRow& row, const F& f) {
  const auto of_shard = [&](int s) {
    const Range columns = order.terms(0, s);
    return row.template sum<M>(columns.size(), [=](const index_t c) { return f(columns.begin + c); });
  };
  if (order.shards_on_rank == 1) return of_shard(0);
  M stack[TreeStack::depth] = {};
  const auto add = [&](int into, int from) { stack[into] += stack[from]; };
  TreeStack tree;
  for (int s = 0; s < order.shards_on_rank; ++s) {
    stack[tree.top()] = of_shard(s);
    tree.push(add);
  }
  tree.finish(add);
  return stack[0];
}

void require_columns(const char* kernel, const SumOrder& order, index_t columns) {
  NANOTRON_REQUIRE(order.block_count == 1 && order.size() == columns,
                   "{}: an order of {} blocks, {} terms for {} columns", kernel, order.block_count, order.size(),
                   columns);
}

}  // namespace

template <class T>
void projection_squares(Device& device, MatrixRef<const T> x, const SumOrder& order, Vector<master_t<T>> sums) {
  using M = master_t<T>;
  const KernelRegion kernel(device, "projection_squares", reads(x), writes(sums));
  require_columns("projection_squares", order, x.columns);
  for_each_row(
      device, "projection_squares", x.rows, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const T* const from = x.data + i * x.leading;
        const M sum = sum_in<M>(order, row, [=](const index_t c) {
          const M value = static_cast<M>(from[c]);
          return value * value;
        });
        row.for_each(1, [=](const index_t) { sums.data()[i] = sum; });
      });
}

template <class T>
void projection_norm_forward(Device& device, MatrixRef<const T> x, const NormScale<master_t<T>>& w, index_t columns,
                             double eps, MatrixRef<T> y, Vector<master_t<T>> statistics) {
  using M = master_t<T>;
  {
    const KernelRegion kernel(device, "projection_rstd", reads(statistics), writes(statistics));
    const M n = static_cast<M>(columns), small = static_cast<M>(eps);
    M* const r = statistics.data();
    for_each_element(
        device, "projection_rstd", x.rows,
        KOKKOS_LAMBDA(const index_t i) { r[i] = M(1) / std::sqrt(r[i] / n + small); });
  }
  const Vector<const M> weights = w.w;
  const M one = w.adds_one ? M(1) : M(0);
  const KernelRegion kernel(device, "projection_norm_forward", reads(x, w.w, statistics), writes(y));
  for_each_row_of<T>(
      device, "projection_norm_forward", x.rows, x.columns, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const T* const from = x.data + i * x.leading;
        T* const to = y.data + i * y.leading;
        const M r = statistics.data()[i];
        const M* const weight = weights.data();
        row.template for_each_chunk<T>(x.columns, [=](const index_t c, const auto n) {
          const auto value = load(from + c, n), scale = load(weight + c, n);
          store(to + c, n, [&](const int k) { return value[k] * r * (one + scale[k]); });
        });
      });
}

template <class T>
void projection_products(Device& device, MatrixRef<const T> dy, MatrixRef<const T> x, const NormScale<master_t<T>>& w,
                         const SumOrder& order, Vector<master_t<T>> sums) {
  using M = master_t<T>;
  const Vector<const M> weights = w.w;
  const M one = w.adds_one ? M(1) : M(0);
  const KernelRegion kernel(device, "projection_products", reads(dy, x, w.w), writes(sums));
  require_columns("projection_products", order, x.columns);
  for_each_row(
      device, "projection_products", x.rows, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const T *const value = x.data + i * x.leading, *const gradient = dy.data + i * dy.leading;
        const M* const weight = weights.data();
        const M sum = sum_in<M>(order, row, [=](const index_t c) {
          return static_cast<M>(gradient[c]) * (one + weight[c]) * static_cast<M>(value[c]);
        });
        row.for_each(1, [=](const index_t) { sums.data()[i] = sum; });
      });
}

template <class T>
void projection_norm_backward(Device& device, MatrixRef<const T> dy, const ProjectionNormGradient<T>& of,
                              MatrixRef<T> dx, Vector<master_t<T>> dw, Vector<master_t<T>> workspace,
                              index_t segments) {
  using M = master_t<T>;
  const MatrixRef<const T> x = of.x;
  const index_t width = x.columns;
  constexpr index_t any_width = 1024;  // as bias_backward: the order does not depend on what a rank has
  const RowPieces pieces(pieces_on(device), segments, x.rows, any_width);
  const auto partial = sums_of_pieces("projection_norm_backward", workspace, pieces.count() * width);
  const KernelRegion kernel(device, "projection_norm_backward", reads(dy, x, of.w.w, of.rstd, of.sums, partial),
                            writes(dx, dw, partial));
  const M n = static_cast<M>(of.columns);
  const Range owned = of.owned;
  const Vector<const M> w = of.w.w, rstd = of.rstd, sums = of.sums;
  const M one = of.w.adds_one ? M(1) : M(0);
  for_each_row_with_sums<T>(
      device, "projection_norm_backward", pieces.count(), width, partial.data(), width,
      KOKKOS_LAMBDA(const Row& row, const index_t at, M* const of_piece) {
        const Range rows = pieces.of(at);
        for (index_t i = rows.begin; i < rows.end; ++i) {
          const T *const value = x.data + i * x.leading, *const gradient = dy.data + i * dy.leading;
          T* const to = dx.data + i * dx.leading;
          const M r = rstd.data()[i], mean = r * r * sums.data()[i] / n;
          const M* const weight = w.data();
          row.for_each(width, [=](const index_t c) {
            const M d = static_cast<M>(gradient[c]), v = static_cast<M>(value[c]);
            const M along = c >= owned.begin && c < owned.end ? v * mean : M(0);
            of_piece[c] += d * v * r;
            to[c] = static_cast<T>(r * (d * (one + weight[c]) - along));
          });
        }
      });
  add_segment_sums<M>(device, partial.data(), pieces, width, width, dw.data());
}

#define NANOTRON_INSTANTIATE(T)                                                                                        \
  template void projection_squares<T>(Device&, MatrixRef<const T>, const SumOrder&, Vector<master_t<T>>);              \
  template void projection_norm_forward<T>(Device&, MatrixRef<const T>, const NormScale<master_t<T>>&, index_t,        \
                                           double, MatrixRef<T>, Vector<master_t<T>>);                                 \
  template void projection_products<T>(Device&, MatrixRef<const T>, MatrixRef<const T>, const NormScale<master_t<T>>&, \
                                       const SumOrder&, Vector<master_t<T>>);                                          \
  template void projection_norm_backward<T>(Device&, MatrixRef<const T>, const ProjectionNormGradient<T>&,             \
                                            MatrixRef<T>, Vector<master_t<T>>, Vector<master_t<T>>, index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
