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

// The sum of x^2 of a row, and y = x r s, or residual + x r s. first: of the row in y.
template <class T>
NANOTRON_FUNCTION master_t<T> sum_of_squares(const Row& row, index_t columns, const T* x) {
  return row.template sum_chunks<T>(columns, [=](const index_t c, const auto n) {
    const auto value = load(x + c, n);
    return sum(n, [&](const int k) { return value[k] * value[k]; });
  });
}
template <class T, class Scale, class Residual>
NANOTRON_FUNCTION void scale_row(const Row& row, index_t columns, const T* x, master_t<T> r, const Scale& scale,
                                 const Residual& residual, index_t first, T* y) {
  row.template for_each_chunk<T>(columns, [=](const index_t c, const auto n) {
    const auto value = load(x + c, n);
    const auto s = scale.at(c, n);
    residual.store_to(y, first, c, n, [&](const int k) { return value[k] * r * s[k]; });
  });
}

// y = norm(x), or residual + norm(x), over each of `groups` groups of `width` columns per row; writes
// rstd(row * groups + group).
template <class T, class Scale, class Residual>
void normalise(Device& device, const char* label, MatrixRef<const T> x, index_t groups, index_t width,
               const Scale& scale, const Residual& residual, double eps, MatrixRef<T> y, master_t<T>* rstd,
               const RowMaxima& sizes) {
  using M = master_t<T>;
  const M small = static_cast<M>(eps);
  for_each_row_of<T>(
      device, label, x.rows * groups, width, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const T* const source = x.data + (i / groups) * x.leading + (i % groups) * width;
        const M r = M(1) / std::sqrt(sum_of_squares<T>(row, width, source) / static_cast<M>(width) + small);
        rstd[i] = r;
        const index_t first = (i / groups) * y.leading + (i % groups) * width;
        T* const target = y.data + first;
        scale_row<T>(row, width, source, r, scale, residual, first, target);
        sizes.store(row, i, target, width);
      });
}

// Of a row, for HeldBackward.
template <class M>
struct RmsRow {
  static constexpr int dots = 1, column_sums = 1, max_threads = 1024;
  M r, mean;  // of dy s x r

  NANOTRON_FUNCTION static RmsRow of(const M* rstd, index_t row) { return {rstd[row], 0}; }
  template <int n>
  NANOTRON_FUNCTION static Chunk<M, 1> dots_of(const Chunk<M, n>& g, const Chunk<M, n>& x, const Chunk<M, n>& s) {
    return {{sum(Width<n>{}, [&](const int k) { return g[k] * s[k] * x[k]; })}};
  }
  NANOTRON_FUNCTION void take(const Chunk<M, 1>& totals, index_t width) {
    mean = totals[0] * r / static_cast<M>(width);
  }
  NANOTRON_FUNCTION M gradient(M g, M x, M s) const { return r * (g * s - x * r * mean); }
  template <int n>
  NANOTRON_FUNCTION void add(Chunk<M, n> (&sums)[1], int k, M g, M x) const {
    sums[0].at[k] += g * (x * r);
  }
};

// dx, and the sums of dw over the pieces, of normalise(). Each row of the policy processes one piece of a segment.
template <class T, class Dx, class Scale>
void gradient_of_pieces(Device& device, const char* label, MatrixRef<const T> dy, MatrixRef<const T> x, index_t groups,
                        index_t width, const Scale& scale, const master_t<T>* rstd, MatrixRef<T> dx,
                        master_t<T>* partial, const RowPieces& pieces, const RowSegments& segments) {
  using M = master_t<T>;
  const index_t head_parts = segments.heads;
  const index_t heads = groups / segments.heads;  // of a segment
  if constexpr (!on_host) {
    const HeldBackward<T, RmsRow<M>, Dx, Scale> held{dy,   x,       dx,     groups, width,     scale,
                                                     rstd, partial, pieces, heads,  head_parts};
    if (device.gemm_mode() == GemmMode::library && held.launch(device, label)) return;
  }
  for_each_row_with_sums<T>(
      device, label, pieces.count(), width, partial, width,
      KOKKOS_LAMBDA(const Row& row, const index_t at, M* const of_piece) {
        const index_t part = at / pieces.pieces, columns = width;
        const index_t first_token = pieces.first_of(part - part % head_parts) / groups;
        const index_t first_head = part % head_parts * heads, before = pieces.first_of(part);
        const Range of_segment = pieces.of(at);
        for (index_t i = of_segment.begin - before; i < of_segment.end - before; ++i) {
          const index_t token = first_token + i / heads, head = first_head + i % heads;
          const T* const gradient = dy.data + token * dy.leading + head * columns;
          const T* const source = x.data + token * x.leading + head * columns;
          T* const target = dx.data + token * dx.leading + head * columns;
          const M r = rstd[token * groups + head];
          const M dot = row.template sum_chunks<T>(columns, [=](const index_t c, const auto n) {
            const auto g = load(gradient + c, n), value = load(source + c, n);
            const auto s = scale.at(c, n);
            return sum(n, [&](const int k) { return g[k] * s[k] * value[k]; });
          });
          const M mean = dot * r / static_cast<M>(columns);
          row.template for_each_chunk<T>(columns, [=](const index_t c, const auto n) {
            const auto g = load(gradient + c, n), value = load(source + c, n), before = Dx::before(target + c, n);
            const auto s = scale.at(c, n), so_far = load(of_piece + c, n);
            const auto hat = chunk(n, [&](const int k) { return value[k] * r; });
            store(of_piece + c, n, [&](const int k) { return so_far[k] + g[k] * hat[k]; });
            store(target + c, n, [&](const int k) { return Dx::add(before[k], r * (g[k] * s[k] - hat[k] * mean)); });
          });
        }
      });
}

// dx of normalise(), and the sums of dw over the pieces.
template <class T, class Dx>
RowPieces normalise_backward_pieces(Device& device, const char* label, MatrixRef<const T> dy, MatrixRef<const T> x,
                                    index_t groups, index_t width, const NormScale<master_t<T>>& w,
                                    const master_t<T>* rstd, MatrixRef<T> dx, const Vector<master_t<T>>& sums,
                                    const RowSegments& segments) {
  NANOTRON_REQUIRE(groups % segments.heads == 0, "{}: {} heads in {} segments", label, groups, segments.heads);
  const RowPieces pieces(pieces_on(device), segments.tokens * segments.heads, x.rows * groups, width,
                         groups / segments.heads);
  with_scale(w, [&](const auto& scale) {
    gradient_of_pieces<T, Dx>(device, label, dy, x, groups, width, scale, rstd, dx, sums.data(), pieces, segments);
  });
  return pieces;
}

// dx and dw (accumulated; none without weights) of normalise().
template <class T, class Dx>
void normalise_backward(Device& device, const char* label, MatrixRef<const T> dy, MatrixRef<const T> x, index_t groups,
                        index_t width, const NormScale<master_t<T>>& w, const master_t<T>* rstd, MatrixRef<T> dx,
                        Vector<master_t<T>> dw, Vector<master_t<T>> sums, const RowSegments& segments) {
  const RowPieces pieces =
      normalise_backward_pieces<T, Dx>(device, label, dy, x, groups, width, w, rstd, dx, sums, segments);
  if (dw.extent(0) > 0) add_segment_sums<master_t<T>>(device, sums.data(), pieces, width, width, dw.data());
}

// dx, and the sums of dw over `each` neighbouring segments, of norms of heads.
template <class T>
Matrix<master_t<T>> gradients_of_heads(Device& device, MatrixRef<const T> dy, MatrixRef<const T> x,
                                       const NormScale<master_t<T>>& w, Matrix<const master_t<T>> rstd, MatrixRef<T> dx,
                                       Vector<master_t<T>> workspace, const RowSegments& segments, index_t each) {
  const char* const label = "head_rms_norm_backward";
  const index_t heads = static_cast<index_t>(rstd.extent(1)), width = static_cast<index_t>(w.w.extent(0));
  const auto sums = sums_of_pieces(
      label, workspace,
      rms_norm_workspace_size(device.processor(), x.rows * heads, width, segments.tokens * segments.heads));
  const KernelRegion kernel(device, label, reads(dy, x, w.w, rstd, sums), writes(dx, sums));
  const RowPieces pieces = normalise_backward_pieces<T, Overwritten<T>>(device, label, dy, x, heads, width, w,
                                                                        rstd.data(), dx, sums, segments);
  return fold_segments<master_t<T>>(device, sums, pieces, each, width);
}

template <class T, class Scale>
void add_and_normalise(Device& device, Matrix<const T> x, Matrix<const T> delta, Matrix<T> sum_out, const Scale& scale,
                       double eps, Matrix<T> y, Vector<master_t<T>> rstd, const RowMaxima& sizes) {
  using M = master_t<T>;
  const index_t columns = static_cast<index_t>(x.extent(1));
  const M small = static_cast<M>(eps);
  for_each_row_of<T>(
      device, "add_rms_norm_forward", static_cast<index_t>(x.extent(0)), columns,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const T *const a = x.data() + i * columns, *const b = delta.data() + i * columns;
        T* const total = sum_out.data() + i * columns;
        row.template for_each_chunk<T>(columns, [=](const index_t c, const auto n) {
          const auto first = load(a + c, n), second = load(b + c, n);
          store(total + c, n, [&](const int k) { return first[k] + second[k]; });
        });
        const M r = M(1) / std::sqrt(sum_of_squares<T>(row, columns, total) / static_cast<M>(columns) + small);
        rstd.data()[i] = r;
        T* const target = y.data() + i * columns;
        scale_row<T>(row, columns, total, r, scale, NoResidual<T>{}, 0, target);
        sizes.store(row, i, target, columns);
      });
}

}  // namespace

template <class T>
void rms_norm_forward(Device& device, Matrix<const T> x, const NormScale<master_t<T>>& w, double eps, Matrix<T> y,
                      Vector<master_t<T>> rstd, Vector<float> maxima) {
  const KernelRegion kernel(device, "rms_norm_forward", reads(x, w.w), writes(y, rstd, maxima));
  with_scale(w, [&](const auto& scale) {
    normalise<T>(device, "rms_norm_forward", x, 1, static_cast<index_t>(x.extent(1)), scale, NoResidual<T>{}, eps, y,
                 rstd.data(), RowMaxima(maxima));
  });
}

template <class T>
void add_rms_norm_forward(Device& device, Matrix<const T> x, Matrix<const T> delta, Matrix<T> sum_out,
                          const NormScale<master_t<T>>& w, double eps, Matrix<T> y, Vector<master_t<T>> rstd,
                          Vector<float> maxima) {
  const KernelRegion kernel(device, "add_rms_norm_forward", reads(x, delta, w.w), writes(sum_out, y, rstd, maxima));
  with_scale(w, [&](const auto& scale) {
    add_and_normalise<T>(device, x, delta, sum_out, scale, eps, y, rstd, RowMaxima(maxima));
  });
}

template <class T>
void rms_norm_add_forward(Device& device, Matrix<const T> x, const NormScale<master_t<T>>& w, double eps,
                          Matrix<const T> residual, Matrix<T> y, Vector<master_t<T>> rstd) {
  const KernelRegion kernel(device, "rms_norm_add_forward", reads(x, w.w, residual), writes(y, rstd));
  with_scale(w, [&](const auto& scale) {
    normalise<T>(device, "rms_norm_add_forward", x, 1, static_cast<index_t>(x.extent(1)), scale,
                 PlusResidual<T>{residual.data()}, eps, y, rstd.data(), RowMaxima(Vector<float>()));
  });
}

template <class T>
void rms_norm_backward(Device& device, Matrix<const T> dy, Matrix<const T> x, const NormScale<master_t<T>>& w,
                       Vector<const master_t<T>> rstd, Matrix<T> dx, Vector<master_t<T>> dw,
                       Vector<master_t<T>> workspace, const RowSegments& segments) {
  const index_t rows = static_cast<index_t>(x.extent(0)), columns = static_cast<index_t>(x.extent(1));
  const auto sums =
      sums_of_pieces("rms_norm_backward", workspace,
                     rms_norm_workspace_size(device.processor(), rows, columns, segments.tokens * segments.heads));
  const KernelRegion kernel(device, "rms_norm_backward", reads(dy, x, w.w, rstd, dx, sums), writes(dx, dw, sums));
  normalise_backward<T, Accumulated<T>>(device, "rms_norm_backward", dy, x, 1, columns, w, rstd.data(), dx, dw, sums,
                                        segments);
}

template <class T>
void rms_norm_add_backward(Device& device, Matrix<const T> dy, Matrix<const T> x, const NormScale<master_t<T>>& w,
                           Vector<const master_t<T>> rstd, Matrix<T> dx, Vector<master_t<T>> dw,
                           Vector<master_t<T>> workspace, const RowSegments& segments) {
  const index_t rows = static_cast<index_t>(x.extent(0)), columns = static_cast<index_t>(x.extent(1));
  const auto sums =
      sums_of_pieces("rms_norm_add_backward", workspace,
                     rms_norm_workspace_size(device.processor(), rows, columns, segments.tokens * segments.heads));
  const KernelRegion kernel(device, "rms_norm_add_backward", reads(dy, x, w.w, rstd, sums), writes(dx, dw, sums));
  normalise_backward<T, Overwritten<T>>(device, "rms_norm_add_backward", dy, x, 1, columns, w, rstd.data(), dx, dw,
                                        sums, segments);
}

index_t rms_norm_workspace_size(Processor processor, index_t rows, index_t columns, index_t segments) {
  return RowPieces(processor, segments, rows, columns).count() * columns;
}

template <class T>
void head_rms_norm_forward(Device& device, MatrixRef<const T> x, const NormScale<master_t<T>>& w, double eps,
                           MatrixRef<T> y, Matrix<master_t<T>> rstd) {
  const KernelRegion kernel(device, "head_rms_norm_forward", reads(x, w.w), writes(y, rstd));
  with_scale(w, [&](const auto& scale) {
    normalise<T>(device, "head_rms_norm_forward", x, static_cast<index_t>(rstd.extent(1)),
                 static_cast<index_t>(w.w.extent(0)), scale, NoResidual<T>{}, eps, y, rstd.data(),
                 RowMaxima(Vector<float>()));
  });
}

template <class T>
void head_rms_norm_backward(Device& device, MatrixRef<const T> dy, MatrixRef<const T> x,
                            const NormScale<master_t<T>>& w, Matrix<const master_t<T>> rstd, MatrixRef<T> dx,
                            Vector<master_t<T>> dw, Vector<master_t<T>> workspace, const RowSegments& segments) {
  const index_t heads = static_cast<index_t>(rstd.extent(1)), width = static_cast<index_t>(w.w.extent(0));
  const auto sums = sums_of_pieces(
      "head_rms_norm_backward", workspace,
      rms_norm_workspace_size(device.processor(), x.rows * heads, width, segments.tokens * segments.heads));
  const KernelRegion kernel(device, "head_rms_norm_backward", reads(dy, x, w.w, rstd, sums), writes(dx, dw, sums));
  normalise_backward<T, Overwritten<T>>(device, "head_rms_norm_backward", dy, x, heads, width, w, rstd.data(), dx, dw,
                                        sums, segments);
}

template <class T>
Matrix<master_t<T>> head_rms_norm_backward_parts(Device& device, MatrixRef<const T> dy, MatrixRef<const T> x,
                                                 const NormScale<master_t<T>>& w, Matrix<const master_t<T>> rstd,
                                                 MatrixRef<T> dx, Vector<master_t<T>> workspace,
                                                 const RowSegments& segments) {
  return gradients_of_heads<T>(device, dy, x, w, rstd, dx, workspace, segments, segments.heads);
}

template <class T>
Matrix<master_t<T>> head_rms_norm_backward_heads(Device& device, MatrixRef<const T> dy, MatrixRef<const T> x,
                                                 const NormScale<master_t<T>>& w, Matrix<const master_t<T>> rstd,
                                                 MatrixRef<T> dx, Vector<master_t<T>> workspace,
                                                 index_t token_segments) {
  const auto heads = static_cast<index_t>(rstd.extent(1));
  return gradients_of_heads<T>(device, dy, x, w, rstd, dx, workspace, {token_segments, heads}, 1);
}

#define NANOTRON_INSTANTIATE(T)                                                                                      \
  template void rms_norm_forward<T>(Device&, Matrix<const T>, const NormScale<master_t<T>>&, double, Matrix<T>,      \
                                    Vector<master_t<T>>, Vector<float>);                                             \
  template void add_rms_norm_forward<T>(Device&, Matrix<const T>, Matrix<const T>, Matrix<T>,                        \
                                        const NormScale<master_t<T>>&, double, Matrix<T>, Vector<master_t<T>>,       \
                                        Vector<float>);                                                              \
  template void rms_norm_add_forward<T>(Device&, Matrix<const T>, const NormScale<master_t<T>>&, double,             \
                                        Matrix<const T>, Matrix<T>, Vector<master_t<T>>);                            \
  template void rms_norm_backward<T>(Device&, Matrix<const T>, Matrix<const T>, const NormScale<master_t<T>>&,       \
                                     Vector<const master_t<T>>, Matrix<T>, Vector<master_t<T>>, Vector<master_t<T>>, \
                                     const RowSegments&);                                                            \
  template void rms_norm_add_backward<T>(Device&, Matrix<const T>, Matrix<const T>, const NormScale<master_t<T>>&,   \
                                         Vector<const master_t<T>>, Matrix<T>, Vector<master_t<T>>,                  \
                                         Vector<master_t<T>>, const RowSegments&);                                   \
  template void head_rms_norm_forward<T>(Device&, MatrixRef<const T>, const NormScale<master_t<T>>&, double,         \
                                         MatrixRef<T>, Matrix<master_t<T>>);                                         \
  template void head_rms_norm_backward<T>(Device&, MatrixRef<const T>, MatrixRef<const T>,                           \
                                          const NormScale<master_t<T>>&, Matrix<const master_t<T>>, MatrixRef<T>,    \
                                          Vector<master_t<T>>, Vector<master_t<T>>, const RowSegments&);             \
  template Matrix<master_t<T>> head_rms_norm_backward_parts<T>(                                                      \
      Device&, MatrixRef<const T>, MatrixRef<const T>, const NormScale<master_t<T>>&, Matrix<const master_t<T>>,     \
      MatrixRef<T>, Vector<master_t<T>>, const RowSegments&);                                                        \
  template Matrix<master_t<T>> head_rms_norm_backward_heads<T>(                                                      \
      Device&, MatrixRef<const T>, MatrixRef<const T>, const NormScale<master_t<T>>&, Matrix<const master_t<T>>,     \
      MatrixRef<T>, Vector<master_t<T>>, index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
