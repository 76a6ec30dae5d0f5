#include "nanotron/kernels/norm/layer_norm.hpp"

#include <cmath>

#include "kernels/loop/segment_sums.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

// One row of n elements. The variance takes a second pass over x, to avoid cancellation.
template <class T, class M>
NANOTRON_FUNCTION void normalise_row(const Row& row, index_t n, const T* x, const M* weight, const M* bias, M eps, T* y,
                                     M* statistics) {
  const M mean = row.template sum<M>(n, [=](const index_t c) { return static_cast<M>(x[c]); }) / static_cast<M>(n);
  const M squares = row.template sum<M>(n, [=](const index_t c) {
    const M value = static_cast<M>(x[c]) - mean;
    return value * value;
  });
  const M r = M(1) / std::sqrt(squares / static_cast<M>(n) + eps);
  statistics[0] = mean;
  statistics[1] = r;
  row.for_each(
      n, [=](const index_t c) { y[c] = static_cast<T>((static_cast<M>(x[c]) - mean) * r * weight[c] + bias[c]); });
}

}  // namespace

template <class T>
void layer_norm_forward(Device& device, Matrix<const T> x, Vector<const master_t<T>> w, Vector<const master_t<T>> b,
                        double eps, Matrix<T> y, Vector<master_t<T>> statistics) {
  const KernelRegion kernel(device, "layer_norm_forward", reads(x, w, b), writes(y, statistics));
  const index_t n = static_cast<index_t>(x.extent(1));
  const auto small = static_cast<master_t<T>>(eps);
  for_each_row(
      device, "layer_norm_forward", static_cast<index_t>(x.extent(0)), KOKKOS_LAMBDA(const Row& row, const index_t i) {
        normalise_row(row, n, x.data() + i * n, w.data(), b.data(), small, y.data() + i * n, statistics.data() + 2 * i);
      });
}

template <class T>
void add_layer_norm_forward(Device& device, Matrix<const T> x, Matrix<const T> delta, Matrix<T> sum_out,
                            Vector<const master_t<T>> w, Vector<const master_t<T>> b, double eps, Matrix<T> y,
                            Vector<master_t<T>> statistics) {
  const KernelRegion kernel(device, "add_layer_norm_forward", reads(x, delta, w, b), writes(sum_out, y, statistics));
  using M = master_t<T>;
  const index_t n = static_cast<index_t>(x.extent(1));
  const M small = static_cast<M>(eps);
  for_each_row(
      device, "add_layer_norm_forward", static_cast<index_t>(x.extent(0)),
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const T *const first = x.data() + i * n, *const second = delta.data() + i * n;
        T* const total = sum_out.data() + i * n;
        row.for_each(n, [=](const index_t c) {
          total[c] = static_cast<T>(static_cast<M>(first[c]) + static_cast<M>(second[c]));
        });
        const T* const sum = total;
        normalise_row(row, n, sum, w.data(), b.data(), small, y.data() + i * n, statistics.data() + 2 * i);
      });
}

// Row `at` of the policy processes one piece of x's rows. Its sums are workspace(at, :) for dw and
// workspace(pieces + at, :) for db.
template <class T>
void layer_norm_backward(Device& device, Matrix<const T> dy, Matrix<const T> x, Vector<const master_t<T>> w,
                         Vector<const master_t<T>> statistics, Matrix<T> dx, Vector<master_t<T>> dw,
                         Vector<master_t<T>> db, Vector<master_t<T>> workspace, const RowSegments& segments) {
  const KernelRegion kernel(device, "layer_norm_backward", reads(dy, x, w, statistics, dx), writes(dx, dw, db));
  using M = master_t<T>;
  const index_t n = static_cast<index_t>(x.extent(1)), rows = static_cast<index_t>(x.extent(0)) / segments.tokens;
  NANOTRON_REQUIRE(static_cast<index_t>(workspace.extent(0)) >= layer_norm_workspace_size(n, segments.tokens) &&
                       rows * segments.tokens == static_cast<index_t>(x.extent(0)) && segments.heads == 1,
                   "layer_norm_backward: {} rows in {} x {} segments, workspace of {}, needs {}", x.extent(0),
                   segments.tokens, segments.heads, workspace.extent(0), layer_norm_workspace_size(n, segments.tokens));
  const index_t pieces = segments.tokens * pieces_of_segment,
                count = (rows + pieces_of_segment - 1) / pieces_of_segment;
  M* const partial = workspace.data();
  for_each_row(
      device, "layer_norm_backward", pieces, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        M *const weight_sums = partial + at * n, *const bias_sums = partial + (pieces + at) * n;
        const index_t first = at / pieces_of_segment * rows, piece = at % pieces_of_segment;
        row.for_each(n, [=](const index_t c) { weight_sums[c] = bias_sums[c] = 0; });
        const index_t end = rows < (piece + 1) * count ? rows : (piece + 1) * count;
        for (index_t i = first + piece * count; i < first + end; ++i) {
          const T *const gradient = dy.data() + i * n, *const source = x.data() + i * n;
          T* const target = dx.data() + i * n;
          const M* const weight = w.data();
          const M mean = statistics.data()[2 * i], r = statistics.data()[2 * i + 1];
          const M sum =
              row.template sum<M>(n, [=](const index_t c) { return static_cast<M>(gradient[c]) * weight[c]; });
          const M dot = row.template sum<M>(n, [=](const index_t c) {
            return static_cast<M>(gradient[c]) * weight[c] * (static_cast<M>(source[c]) - mean);
          });
          const M mean_g = sum / static_cast<M>(n), mean_gx = dot * r / static_cast<M>(n);
          row.for_each(n, [=](const index_t c) {
            const M g = static_cast<M>(gradient[c]), hat = (static_cast<M>(source[c]) - mean) * r;
            weight_sums[c] += g * hat;
            bias_sums[c] += g;
            target[c] = static_cast<T>(static_cast<M>(target[c]) + r * (g * weight[c] - mean_g - hat * mean_gx));
          });
        }
      });
  add_segment_sums<M>(device, partial, segments.tokens, n, dw.data());
  add_segment_sums<M>(device, partial + pieces * n, segments.tokens, n, db.data());
}

index_t layer_norm_workspace_size(index_t columns, index_t segments) {
  return 2 * segments * pieces_of_segment * columns;
}

#define NANOTRON_INSTANTIATE(T)                                                                                        \
  template void layer_norm_forward<T>(Device&, Matrix<const T>, Vector<const master_t<T>>, Vector<const master_t<T>>,  \
                                      double, Matrix<T>, Vector<master_t<T>>);                                         \
  template void add_layer_norm_forward<T>(Device&, Matrix<const T>, Matrix<const T>, Matrix<T>,                        \
                                          Vector<const master_t<T>>, Vector<const master_t<T>>, double, Matrix<T>,     \
                                          Vector<master_t<T>>);                                                        \
  template void layer_norm_backward<T>(Device&, Matrix<const T>, Matrix<const T>, Vector<const master_t<T>>,           \
                                       Vector<const master_t<T>>, Matrix<T>, Vector<master_t<T>>, Vector<master_t<T>>, \
                                       Vector<master_t<T>>, const RowSegments&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
