#include "nanotron/kernels/norm/norm.hpp"

#include <cmath>

#include "kernels/loop/maxima.hpp"
#include "kernels/loop/segment_sums.hpp"
#include "kernels/norm/held_rows.hpp"
#include "kernels/norm/scale.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

// Biases of the columns, or zeros where there are none.
template <class M>
struct StoredBias {
  const M* b;
  template <int n>
  NANOTRON_FUNCTION Chunk<M, n> at(index_t c, Width<n> width) const {
    return load(b + c, width);
  }
};
template <class M>
struct NoBias {
  template <int n>
  NANOTRON_FUNCTION Chunk<M, n> at(index_t, Width<n>) const {
    return {};
  }
};
template <class M, class F>
void with_scale_and_bias(const NormScale<M>& w, const Vector<const M>& b, const F& f) {
  with_scale(w, [&](const auto& scale) {
    if (b.extent(0) == 0) return f(scale, NoBias<M>{});
    f(scale, StoredBias<M>{b.data()});
  });
}

// One row of `columns` elements. The variance takes a second pass over x, to avoid cancellation. first: of the row in
// y.
template <class T, class M, class Scale, class Bias, class Residual>
NANOTRON_FUNCTION void normalise_row(const Row& row, index_t columns, const T* x, const Scale& scale, const Bias& bias,
                                     const Residual& residual, index_t first, M eps, T* y, M* statistics) {
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
    const auto s = scale.at(c, n), b = bias.at(c, n);
    residual.store_to(y, first, c, n, [&](const int k) { return (value[k] - mean) * r * s[k] + b[k]; });
  });
}

// y = norm(x), or residual + norm(x).
template <class T, class Scale, class Bias, class Residual>
void normalise(Device& device, const char* label, Matrix<const T> x, const Scale& scale, const Bias& bias,
               const Residual& residual, double eps, Matrix<T> y, Vector<master_t<T>> statistics,
               const RowMaxima& sizes) {
  const index_t n = static_cast<index_t>(x.extent(1));
  const auto small = static_cast<master_t<T>>(eps);
  for_each_row_of<T>(
      device, label, static_cast<index_t>(x.extent(0)), n, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        normalise_row(row, n, x.data() + i * n, scale, bias, residual, i * n, small, y.data() + i * n,
                      statistics.data() + 2 * i);
        sizes.store(row, i, y.data() + i * n, n);
      });
}

template <class T, class Scale, class Bias>
void add_and_normalise(Device& device, Matrix<const T> x, Matrix<const T> delta, Matrix<T> sum_out, const Scale& scale,
                       const Bias& bias, double eps, Matrix<T> y, Vector<master_t<T>> statistics,
                       const RowMaxima& sizes) {
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
        normalise_row(row, columns, sum, scale, bias, NoResidual<T>{}, 0, small, y.data() + i * columns,
                      statistics.data() + 2 * i);
        sizes.store(row, i, y.data() + i * columns, columns);
      });
}

// Of a row, for HeldBackward.
template <class M>
struct LayerNormRow {
  static constexpr int dots = 2, column_sums = 2, max_threads = 768;  // sums of dw, of db
  M mean, r, mean_g, mean_gx;                                         // g: dy s

  NANOTRON_FUNCTION static LayerNormRow of(const M* statistics, index_t row) {
    return {statistics[2 * row], statistics[2 * row + 1], 0, 0};
  }
  template <int n>
  NANOTRON_FUNCTION Chunk<M, 2> dots_of(const Chunk<M, n>& g, const Chunk<M, n>& x, const Chunk<M, n>& s) const {
    return {{sum(Width<n>{}, [&](const int k) { return g[k] * s[k]; }),
             sum(Width<n>{}, [&](const int k) { return g[k] * s[k] * (x[k] - mean); })}};
  }
  NANOTRON_FUNCTION void take(const Chunk<M, 2>& totals, index_t width) {
    mean_g = totals[0] / static_cast<M>(width);
    mean_gx = totals[1] * r / static_cast<M>(width);
  }
  NANOTRON_FUNCTION M gradient(M g, M x, M s) const { return r * (g * s - mean_g - (x - mean) * r * mean_gx); }
  template <int n>
  NANOTRON_FUNCTION void add(Chunk<M, n> (&sums)[2], int k, M g, M x) const {
    sums[0].at[k] += g * ((x - mean) * r);
    sums[1].at[k] += g;
  }
};

// dx, and the sums of dw and db over the pieces: the rows of a piece one after the other.
template <class T, class Dx, class Scale>
void gradient_of_pieces(Device& device, const char* label, Matrix<const T> dy, Matrix<const T> x, const Scale& scale,
                        Vector<const master_t<T>> statistics, Matrix<T> dx, const RowPieces& pieces,
                        master_t<T>* sums) {
  using M = master_t<T>;
  const index_t columns = static_cast<index_t>(x.extent(1));
  if constexpr (!on_host) {
    const HeldBackward<T, LayerNormRow<M>, Dx, Scale> held{dy,   x,      dx, 1, columns, scale, statistics.data(),
                                                           sums, pieces, 1,  1};
    if (device.gemm_mode() == GemmMode::library && held.launch(device, label)) return;
  }
  for_each_row_with_sums<T>(
      device, label, pieces.count(), columns, sums, 2 * columns,
      KOKKOS_LAMBDA(const Row& row, const index_t at, M* const weight_sums) {
        M* const bias_sums = weight_sums + columns;
        const Range of_piece = pieces.of(at);
        for (index_t i = of_piece.begin; i < of_piece.end; ++i) {
          const T *const gradient = dy.data() + i * columns, *const source = x.data() + i * columns;
          T* const target = dx.data() + i * columns;
          const M mean = statistics.data()[2 * i], r = statistics.data()[2 * i + 1];
          const M total = row.template sum_chunks<T>(columns, [=](const index_t c, const auto n) {
            const auto g = load(gradient + c, n);
            const auto s = scale.at(c, n);
            return sum(n, [&](const int k) { return g[k] * s[k]; });
          });
          const M dot = row.template sum_chunks<T>(columns, [=](const index_t c, const auto n) {
            const auto g = load(gradient + c, n), value = load(source + c, n);
            const auto s = scale.at(c, n);
            return sum(n, [&](const int k) { return g[k] * s[k] * (value[k] - mean); });
          });
          const M mean_g = total / static_cast<M>(columns), mean_gx = dot * r / static_cast<M>(columns);
          row.template for_each_chunk<T>(columns, [=](const index_t c, const auto n) {
            const auto g = load(gradient + c, n), value = load(source + c, n), before = Dx::before(target + c, n);
            const auto s = scale.at(c, n), dw_c = load(weight_sums + c, n), db_c = load(bias_sums + c, n);
            const auto hat = chunk(n, [&](const int k) { return (value[k] - mean) * r; });
            store(weight_sums + c, n, [&](const int k) { return dw_c[k] + g[k] * hat[k]; });
            store(bias_sums + c, n, [&](const int k) { return db_c[k] + g[k]; });
            store(target + c, n,
                  [&](const int k) { return Dx::add(before[k], r * (g[k] * s[k] - mean_g - hat[k] * mean_gx)); });
          });
        }
      });
}

// dx, dw and db (accumulated, where the norm has them).
template <class T, class Dx>
void normalise_backward(Device& device, const char* label, Matrix<const T> dy, Matrix<const T> x,
                        const NormScale<master_t<T>>& w, Vector<const master_t<T>> statistics, Matrix<T> dx,
                        Vector<master_t<T>> dw, Vector<master_t<T>> db, Vector<master_t<T>> sums,
                        const RowSegments& segments) {
  using M = master_t<T>;
  const index_t columns = static_cast<index_t>(x.extent(1)), rows = static_cast<index_t>(x.extent(0));
  NANOTRON_REQUIRE(segments.heads == 1, "{}: {} segments of heads", label, segments.heads);
  const RowPieces pieces(pieces_on(device), segments.tokens, rows, columns);
  with_scale(w, [&](const auto& scale) {
    gradient_of_pieces<T, Dx>(device, label, dy, x, scale, statistics, dx, pieces, sums.data());
  });
  if (dw.extent(0) > 0) add_segment_sums<M>(device, sums.data(), pieces, columns, 2 * columns, dw.data());
  if (db.extent(0) > 0) add_segment_sums<M>(device, sums.data() + columns, pieces, columns, 2 * columns, db.data());
}

// The workspace of a backward that is used.
template <class T>
Vector<master_t<T>> sums_of(Device& device, const char* kernel, Matrix<const T> x, Vector<master_t<T>> workspace,
                            const RowSegments& segments) {
  return sums_of_pieces(kernel, workspace,
                        layer_norm_workspace_size(device.processor(), static_cast<index_t>(x.extent(0)),
                                                  static_cast<index_t>(x.extent(1)), segments.tokens));
}

}  // namespace

template <class T>
void layer_norm_forward(Device& device, Matrix<const T> x, const NormScale<master_t<T>>& w, Vector<const master_t<T>> b,
                        double eps, Matrix<T> y, Vector<master_t<T>> statistics, Vector<float> maxima) {
  const KernelRegion kernel(device, "layer_norm_forward", reads(x, w.w, b), writes(y, statistics, maxima));
  with_scale_and_bias(w, b, [&](const auto& scale, const auto& bias) {
    normalise<T>(device, "layer_norm_forward", x, scale, bias, NoResidual<T>{}, eps, y, statistics, RowMaxima(maxima));
  });
}

template <class T>
void add_layer_norm_forward(Device& device, Matrix<const T> x, Matrix<const T> delta, Matrix<T> sum_out,
                            const NormScale<master_t<T>>& w, Vector<const master_t<T>> b, double eps, Matrix<T> y,
                            Vector<master_t<T>> statistics, Vector<float> maxima) {
  const KernelRegion kernel(device, "add_layer_norm_forward", reads(x, delta, w.w, b),
                            writes(sum_out, y, statistics, maxima));
  with_scale_and_bias(w, b, [&](const auto& scale, const auto& bias) {
    add_and_normalise<T>(device, x, delta, sum_out, scale, bias, eps, y, statistics, RowMaxima(maxima));
  });
}

template <class T>
void layer_norm_add_forward(Device& device, Matrix<const T> x, const NormScale<master_t<T>>& w,
                            Vector<const master_t<T>> b, double eps, Matrix<const T> residual, Matrix<T> y,
                            Vector<master_t<T>> statistics) {
  const KernelRegion kernel(device, "layer_norm_add_forward", reads(x, w.w, b, residual), writes(y, statistics));
  with_scale_and_bias(w, b, [&](const auto& scale, const auto& bias) {
    normalise<T>(device, "layer_norm_add_forward", x, scale, bias, PlusResidual<T>{residual.data()}, eps, y, statistics,
                 RowMaxima(Vector<float>()));
  });
}

template <class T>
void layer_norm_backward(Device& device, Matrix<const T> dy, Matrix<const T> x, const NormScale<master_t<T>>& w,
                         Vector<const master_t<T>> statistics, Matrix<T> dx, Vector<master_t<T>> dw,
                         Vector<master_t<T>> db, Vector<master_t<T>> workspace, const RowSegments& segments) {
  const auto sums = sums_of<T>(device, "layer_norm_backward", x, workspace, segments);
  const KernelRegion kernel(device, "layer_norm_backward", reads(dy, x, w.w, statistics, dx, sums),
                            writes(dx, dw, db, sums));
  normalise_backward<T, Accumulated<T>>(device, "layer_norm_backward", dy, x, w, statistics, dx, dw, db, sums,
                                        segments);
}

template <class T>
void layer_norm_add_backward(Device& device, Matrix<const T> dy, Matrix<const T> x, const NormScale<master_t<T>>& w,
                             Vector<const master_t<T>> statistics, Matrix<T> dx, Vector<master_t<T>> dw,
                             Vector<master_t<T>> db, Vector<master_t<T>> workspace, const RowSegments& segments) {
  const auto sums = sums_of<T>(device, "layer_norm_add_backward", x, workspace, segments);
  const KernelRegion kernel(device, "layer_norm_add_backward", reads(dy, x, w.w, statistics, sums),
                            writes(dx, dw, db, sums));
  normalise_backward<T, Overwritten<T>>(device, "layer_norm_add_backward", dy, x, w, statistics, dx, dw, db, sums,
                                        segments);
}

index_t layer_norm_workspace_size(Processor processor, index_t rows, index_t columns, index_t segments) {
  return 2 * RowPieces(processor, segments, rows, columns).count() * columns;
}

#define NANOTRON_INSTANTIATE(T)                                                                                        \
  template void layer_norm_forward<T>(Device&, Matrix<const T>, const NormScale<master_t<T>>&,                         \
                                      Vector<const master_t<T>>, double, Matrix<T>, Vector<master_t<T>>,               \
                                      Vector<float>);                                                                  \
  template void add_layer_norm_forward<T>(Device&, Matrix<const T>, Matrix<const T>, Matrix<T>,                        \
                                          const NormScale<master_t<T>>&, Vector<const master_t<T>>, double, Matrix<T>, \
                                          Vector<master_t<T>>, Vector<float>);                                         \
  template void layer_norm_add_forward<T>(Device&, Matrix<const T>, const NormScale<master_t<T>>&,                     \
                                          Vector<const master_t<T>>, double, Matrix<const T>, Matrix<T>,               \
                                          Vector<master_t<T>>);                                                        \
  template void layer_norm_backward<T>(Device&, Matrix<const T>, Matrix<const T>, const NormScale<master_t<T>>&,       \
                                       Vector<const master_t<T>>, Matrix<T>, Vector<master_t<T>>, Vector<master_t<T>>, \
                                       Vector<master_t<T>>, const RowSegments&);                                       \
  template void layer_norm_add_backward<T>(Device&, Matrix<const T>, Matrix<const T>, const NormScale<master_t<T>>&,   \
                                           Vector<const master_t<T>>, Matrix<T>, Vector<master_t<T>>,                  \
                                           Vector<master_t<T>>, Vector<master_t<T>>, const RowSegments&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
