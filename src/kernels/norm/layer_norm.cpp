#include "nanotron/kernels/norm/norm.hpp"

#include <cmath>

#include "kernels/loop/maxima.hpp"
#include "kernels/loop/segment_sums.hpp"
#include "kernels/norm/held_rows.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

// One row of `columns` elements. The variance takes a second pass over x, to avoid cancellation.
template <class T, class M>
NANOTRON_FUNCTION void normalise_row(const Row& row, index_t columns, const T* x, const M* weight, const M* bias, M eps,
                                     T* y, M* statistics) {
  const M mean = row.template sum_chunks<T>(columns, [=](const index_t c, const auto n) {
    const auto value = load(x + c, n);
    return sum(n, [&](const int k) { return value[k]; });
  }) / static_cast<M>(columns);
  const M squares = row.template sum_chunks<T>(columns, [=](const index_t c, const auto n) {
    const auto value = load(x + c, n);
    return sum(n, [&](const int k) { return (value[k] - mean) * (value[k] - mean); });
  });
  const M r = M(1) / std::sqrt(squares / static_cast<M>(columns) + eps);
  statistics[0] = mean;
  statistics[1] = r;
  row.template for_each_chunk<T>(columns, [=](const index_t c, const auto n) {
    const auto value = load(x + c, n);
    const auto w = load(weight + c, n), b = load(bias + c, n);
    store(y + c, n, [&](const int k) { return (value[k] - mean) * r * w[k] + b[k]; });
  });
}

// Of a row, for HeldBackward.
template <class M>
struct LayerNormRow {
  static constexpr int dots = 2, column_sums = 2, max_threads = 768;  // sums of dw, of db
  M mean, r, mean_g, mean_gx;                                         // g: dy w

  NANOTRON_FUNCTION static LayerNormRow of(const M* statistics, index_t row) {
    return {statistics[2 * row], statistics[2 * row + 1], 0, 0};
  }
  template <int n>
  NANOTRON_FUNCTION Chunk<M, 2> dots_of(const Chunk<M, n>& g, const Chunk<M, n>& x, const Chunk<M, n>& w) const {
    return {{sum(Width<n>{}, [&](const int k) { return g[k] * w[k]; }),
             sum(Width<n>{}, [&](const int k) { return g[k] * w[k] * (x[k] - mean); })}};
  }
  NANOTRON_FUNCTION void take(const Chunk<M, 2>& totals, index_t width) {
    mean_g = totals[0] / static_cast<M>(width);
    mean_gx = totals[1] * r / static_cast<M>(width);
  }
  NANOTRON_FUNCTION M gradient(M g, M x, M w) const { return r * (g * w - mean_g - (x - mean) * r * mean_gx); }
  template <int n>
  NANOTRON_FUNCTION void add(Chunk<M, n> (&sums)[2], int k, M g, M x) const {
    sums[0].at[k] += g * ((x - mean) * r);
    sums[1].at[k] += g;
  }
};

// The rows of a piece one after the other. Its sums are those of dw, then of db.
template <class T>
void backward_of_pieces(Device& device, Matrix<const T> dy, Matrix<const T> x, Vector<const master_t<T>> w,
                        Vector<const master_t<T>> statistics, Matrix<T> dx, const RowPieces& pieces,
                        master_t<T>* sums) {
  using M = master_t<T>;
  const index_t columns = static_cast<index_t>(x.extent(1));
  for_each_row_with_sums<T>(
      device, "layer_norm_backward", pieces.count(), columns, sums, 2 * columns,
      KOKKOS_LAMBDA(const Row& row, const index_t at, M* const weight_sums) {
        M* const bias_sums = weight_sums + columns;
        const Range of_piece = pieces.of(at);
        for (index_t i = of_piece.begin; i < of_piece.end; ++i) {
          const T *const gradient = dy.data() + i * columns, *const source = x.data() + i * columns;
          T* const target = dx.data() + i * columns;
          const M* const weight = w.data();
          const M mean = statistics.data()[2 * i], r = statistics.data()[2 * i + 1];
          const M total = row.template sum_chunks<T>(columns, [=](const index_t c, const auto n) {
            const auto g = load(gradient + c, n);
            const auto w_c = load(weight + c, n);
            return sum(n, [&](const int k) { return g[k] * w_c[k]; });
          });
          const M dot = row.template sum_chunks<T>(columns, [=](const index_t c, const auto n) {
            const auto g = load(gradient + c, n), value = load(source + c, n);
            const auto w_c = load(weight + c, n);
            return sum(n, [&](const int k) { return g[k] * w_c[k] * (value[k] - mean); });
          });
          const M mean_g = total / static_cast<M>(columns), mean_gx = dot * r / static_cast<M>(columns);
          row.template for_each_chunk<T>(columns, [=](const index_t c, const auto n) {
            const auto g = load(gradient + c, n), value = load(source + c, n), before = load(target + c, n);
            const auto w_c = load(weight + c, n), dw_c = load(weight_sums + c, n), db_c = load(bias_sums + c, n);
            const auto hat = chunk(n, [&](const int k) { return (value[k] - mean) * r; });
            store(weight_sums + c, n, [&](const int k) { return dw_c[k] + g[k] * hat[k]; });
            store(bias_sums + c, n, [&](const int k) { return db_c[k] + g[k]; });
            store(target + c, n,
                  [&](const int k) { return before[k] + r * (g[k] * w_c[k] - mean_g - hat[k] * mean_gx); });
          });
        }
      });
}

}  // namespace

template <class T>
void layer_norm_forward(Device& device, Matrix<const T> x, Vector<const master_t<T>> w, Vector<const master_t<T>> b,
                        double eps, Matrix<T> y, Vector<master_t<T>> statistics, Vector<float> maxima) {
  const RowMaxima sizes(maxima);
  const KernelRegion kernel(device, "layer_norm_forward", reads(x, w, b), writes(y, statistics, maxima));
  const index_t n = static_cast<index_t>(x.extent(1));
  const auto small = static_cast<master_t<T>>(eps);
  for_each_row_of<T>(
      device, "layer_norm_forward", static_cast<index_t>(x.extent(0)), n,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        normalise_row(row, n, x.data() + i * n, w.data(), b.data(), small, y.data() + i * n, statistics.data() + 2 * i);
        sizes.store(row, i, y.data() + i * n, n);
      });
}

template <class T>
void add_layer_norm_forward(Device& device, Matrix<const T> x, Matrix<const T> delta, Matrix<T> sum_out,
                            Vector<const master_t<T>> w, Vector<const master_t<T>> b, double eps, Matrix<T> y,
                            Vector<master_t<T>> statistics, Vector<float> maxima) {
  const RowMaxima sizes(maxima);
  const KernelRegion kernel(device, "add_layer_norm_forward", reads(x, delta, w, b),
                            writes(sum_out, y, statistics, maxima));
  using M = master_t<T>;
  const index_t columns = static_cast<index_t>(x.extent(1));
  const M small = static_cast<M>(eps);
  for_each_row_of<T>(
      device, "add_layer_norm_forward", static_cast<index_t>(x.extent(0)), columns,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const T *const first = x.data() + i * columns, *const second = delta.data() + i * columns;
        T* const total = sum_out.data() + i * columns;
        row.template for_each_chunk<T>(columns, [=](const index_t c, const auto n) {
          const auto a = load(first + c, n), b = load(second + c, n);
          store(total + c, n, [&](const int k) { return a[k] + b[k]; });
        });
        const T* const sum = total;
        normalise_row(row, columns, sum, w.data(), b.data(), small, y.data() + i * columns, statistics.data() + 2 * i);
        sizes.store(row, i, y.data() + i * columns, columns);
      });
}

template <class T>
void layer_norm_backward(Device& device, Matrix<const T> dy, Matrix<const T> x, Vector<const master_t<T>> w,
                         Vector<const master_t<T>> statistics, Matrix<T> dx, Vector<master_t<T>> dw,
                         Vector<master_t<T>> db, Vector<master_t<T>> workspace, const RowSegments& segments) {
  using M = master_t<T>;
  const index_t columns = static_cast<index_t>(x.extent(1)), rows = static_cast<index_t>(x.extent(0));
  const RowPieces pieces(device.processor(), segments.tokens, rows, columns);
  NANOTRON_REQUIRE(rows % segments.tokens == 0 && segments.heads == 1,
                   "layer_norm_backward: {} rows in {} x {} segments", rows, segments.tokens, segments.heads);
  const auto sums = sums_of_pieces("layer_norm_backward", workspace,
                                   layer_norm_workspace_size(device.processor(), rows, columns, segments.tokens));
  const KernelRegion kernel(device, "layer_norm_backward", reads(dy, x, w, statistics, dx, sums),
                            writes(dx, dw, db, sums));
  bool is_done = false;
  if constexpr (!on_host) {
    const HeldBackward<T, LayerNormRow<M>, Accumulated<T>> held{
        dy, x, dx, 1, columns, w.data(), statistics.data(), sums.data(), pieces, 1, 1};
    is_done = held.launch(device, "layer_norm_backward");
  }
  if (!is_done) backward_of_pieces<T>(device, dy, x, w, statistics, dx, pieces, sums.data());
  add_segment_sums<M>(device, sums.data(), pieces, columns, 2 * columns, dw.data());
  add_segment_sums<M>(device, sums.data() + columns, pieces, columns, 2 * columns, db.data());
}

index_t layer_norm_workspace_size(Processor processor, index_t rows, index_t columns, index_t segments) {
  return 2 * RowPieces(processor, segments, rows, columns).count() * columns;
}

#define NANOTRON_INSTANTIATE(T)                                                                                        \
  template void layer_norm_forward<T>(Device&, Matrix<const T>, Vector<const master_t<T>>, Vector<const master_t<T>>,  \
                                      double, Matrix<T>, Vector<master_t<T>>, Vector<float>);                          \
  template void add_layer_norm_forward<T>(Device&, Matrix<const T>, Matrix<const T>, Matrix<T>,                        \
                                          Vector<const master_t<T>>, Vector<const master_t<T>>, double, Matrix<T>,     \
                                          Vector<master_t<T>>, Vector<float>);                                         \
  template void layer_norm_backward<T>(Device&, Matrix<const T>, Matrix<const T>, Vector<const master_t<T>>,           \
                                       Vector<const master_t<T>>, Matrix<T>, Vector<master_t<T>>, Vector<master_t<T>>, \
                                       Vector<master_t<T>>, const RowSegments&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
