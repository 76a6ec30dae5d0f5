#include "nanotron/kernels/norm/rms_norm.hpp"

#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "kernels/loop/segment_sums.hpp"

namespace nanotron::kernels {
namespace {

// y = norm(x) over each of `groups` groups of `width` columns per row; writes rstd(row * groups + group).
template <class T>
void normalise(Device& device, const char* label, MatrixRef<const T> x, index_t groups,
               index_t width, Vector<const master_t<T>> w, double eps, MatrixRef<T> y,
               master_t<T>* rstd) {
  using M = master_t<T>;
  const M* const weights = w.data();
  const M small = static_cast<M>(eps);
  for_each_row(
      device, label, x.rows * groups, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const T* const source = x.data + (i / groups) * x.leading + (i % groups) * width;
        T* const target = y.data + (i / groups) * y.leading + (i % groups) * width;
        const M* const weight = weights;
        const index_t n = width;
        const M squares = row.template sum<M>(n, [=](const index_t c) {
          const M value = static_cast<M>(source[c]);
          return value * value;
        });
        const M r = M(1) / std::sqrt(squares / static_cast<M>(n) + small);
        rstd[i] = r;
        row.for_each(n, [=](const index_t c) {
          target[c] = static_cast<T>(static_cast<M>(source[c]) * r * weight[c]);
        });
      });
}

// dx (accumulated or overwritten) and dw (accumulated) of normalise(). Each row of the policy
// processes one piece of a segment.
template <class T, bool accumulate_dx>
void normalise_backward(Device& device, const char* label, MatrixRef<const T> dy,
                        MatrixRef<const T> x, index_t groups, index_t width,
                        Vector<const master_t<T>> w, const master_t<T>* rstd, MatrixRef<T> dx,
                        Vector<master_t<T>> dw, Vector<master_t<T>> workspace, const RowSegments& segments) {
  using M = master_t<T>;
  const index_t tokens = x.rows / segments.tokens, heads = groups / segments.heads;  // per segment
  const index_t parts = segments.tokens * segments.heads, head_parts = segments.heads;
  NANOTRON_REQUIRE(static_cast<index_t>(workspace.extent(0)) >= rms_norm_workspace_size(width, parts) &&
                       tokens * segments.tokens == x.rows && heads * segments.heads == groups,
                   "{}: {} x {} in {} x {} segments, workspace of {}, needs {}", label, x.rows, groups,
                   segments.tokens, segments.heads, workspace.extent(0), rms_norm_workspace_size(width, parts));
  const M* const weights = w.data();
  M* const partial = workspace.data();
  const index_t total = tokens * heads;
  const index_t count = (total + pieces_of_segment - 1) / pieces_of_segment;
  for_each_row(
      device, label, parts * pieces_of_segment, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const M* const weight = weights;
        M* const sums = partial + at * width;
        const index_t n = width, piece = at % pieces_of_segment, part = at / pieces_of_segment;
        const index_t first_token = part / head_parts * tokens, first_head = part % head_parts * heads;
        row.for_each(n, [=](const index_t c) { sums[c] = 0; });
        const index_t end = total < (piece + 1) * count ? total : (piece + 1) * count;
        for (index_t i = piece * count; i < end; ++i) {
          const index_t token = first_token + i / heads, head = first_head + i % heads;
          const T* const gradient = dy.data + token * dy.leading + head * n;
          const T* const source = x.data + token * x.leading + head * n;
          T* const target = dx.data + token * dx.leading + head * n;
          const M r = rstd[token * groups + head];
          const M dot = row.template sum<M>(n, [=](const index_t c) {
            return static_cast<M>(gradient[c]) * weight[c] * static_cast<M>(source[c]);
          });
          const M mean = dot * r / static_cast<M>(n);
          row.for_each(n, [=](const index_t c) {
            const M g = static_cast<M>(gradient[c]);
            const M hat = static_cast<M>(source[c]) * r;
            const M value = r * (g * weight[c] - hat * mean);
            sums[c] += g * hat;
            if constexpr (accumulate_dx) {
              target[c] = static_cast<T>(static_cast<M>(target[c]) + value);
            } else {
              target[c] = static_cast<T>(value);
            }
          });
        }
      });
  add_segment_sums<M>(device, partial, parts, width, dw.data());
}

}  // namespace

template <class T>
void rms_norm_forward(Device& device, Matrix<const T> x, Vector<const master_t<T>> w, double eps,
                      Matrix<T> y, Vector<master_t<T>> rstd) {
  const KernelRegion kernel(device, "rms_norm_forward", reads(x, w), writes(y, rstd));
  normalise<T>(device, "rms_norm_forward", x, 1, static_cast<index_t>(x.extent(1)), w, eps, y,
               rstd.data());
}

template <class T>
void add_rms_norm_forward(Device& device, Matrix<const T> x, Matrix<const T> delta,
                          Matrix<T> sum_out, Vector<const master_t<T>> w, double eps, Matrix<T> y,
                          Vector<master_t<T>> rstd) {
  const KernelRegion kernel(device, "add_rms_norm_forward", reads(x, delta, w), writes(sum_out, y, rstd));
  using M = master_t<T>;
  const index_t columns = static_cast<index_t>(x.extent(1));
  const M small = static_cast<M>(eps);
  for_each_row(
      device, "add_rms_norm_forward", static_cast<index_t>(x.extent(0)),
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const index_t n = columns;
        const T* const a = x.data() + i * n;
        const T* const b = delta.data() + i * n;
        T* const total = sum_out.data() + i * n;
        T* const target = y.data() + i * n;
        const M* const weight = w.data();
        row.for_each(n, [=](const index_t c) {
          total[c] = static_cast<T>(static_cast<M>(a[c]) + static_cast<M>(b[c]));
        });
        const M squares = row.template sum<M>(n, [=](const index_t c) {
          const M value = static_cast<M>(total[c]);
          return value * value;
        });
        const M r = M(1) / std::sqrt(squares / static_cast<M>(n) + small);
        rstd.data()[i] = r;
        row.for_each(n, [=](const index_t c) {
          target[c] = static_cast<T>(static_cast<M>(total[c]) * r * weight[c]);
        });
      });
}

template <class T>
void rms_norm_backward(Device& device, Matrix<const T> dy, Matrix<const T> x,
                       Vector<const master_t<T>> w, Vector<const master_t<T>> rstd, Matrix<T> dx,
                       Vector<master_t<T>> dw, Vector<master_t<T>> workspace, const RowSegments& segments) {
  const KernelRegion kernel(device, "rms_norm_backward", reads(dy, x, w, rstd, dx), writes(dx, dw));
  normalise_backward<T, true>(device, "rms_norm_backward", dy, x, 1,
                              static_cast<index_t>(x.extent(1)), w, rstd.data(), dx, dw, workspace, segments);
}

index_t rms_norm_workspace_size(index_t columns, index_t segments) { return segments * pieces_of_segment * columns; }

template <class T>
void head_rms_norm_forward(Device& device, MatrixRef<const T> x, Vector<const master_t<T>> w,
                           double eps, MatrixRef<T> y, Matrix<master_t<T>> rstd) {
  const KernelRegion kernel(device, "head_rms_norm_forward", reads(x, w), writes(y, rstd));
  normalise<T>(device, "head_rms_norm_forward", x, static_cast<index_t>(rstd.extent(1)),
               static_cast<index_t>(w.extent(0)), w, eps, y, rstd.data());
}

template <class T>
void head_rms_norm_backward(Device& device, MatrixRef<const T> dy, MatrixRef<const T> x,
                            Vector<const master_t<T>> w, Matrix<const master_t<T>> rstd,
                            MatrixRef<T> dx, Vector<master_t<T>> dw,
                            Vector<master_t<T>> workspace, const RowSegments& segments) {
  const KernelRegion kernel(device, "head_rms_norm_backward", reads(dy, x, w, rstd), writes(dx, dw));
  normalise_backward<T, false>(
      device, "head_rms_norm_backward", dy, x, static_cast<index_t>(rstd.extent(1)),
      static_cast<index_t>(w.extent(0)), w, rstd.data(), dx, dw, workspace, segments);
}

#define NANOTRON_INSTANTIATE(T)                                                                  \
  template void rms_norm_forward<T>(Device&, Matrix<const T>, Vector<const master_t<T>>, double, \
                                    Matrix<T>, Vector<master_t<T>>);                             \
  template void add_rms_norm_forward<T>(Device&, Matrix<const T>, Matrix<const T>, Matrix<T>,    \
                                        Vector<const master_t<T>>, double, Matrix<T>,            \
                                        Vector<master_t<T>>);                                    \
  template void rms_norm_backward<T>(Device&, Matrix<const T>, Matrix<const T>,                  \
                                     Vector<const master_t<T>>, Vector<const master_t<T>>,       \
                                     Matrix<T>, Vector<master_t<T>>, Vector<master_t<T>>,        \
                                       const RowSegments&);       \
  template void head_rms_norm_forward<T>(Device&, MatrixRef<const T>, Vector<const master_t<T>>, \
                                         double, MatrixRef<T>, Matrix<master_t<T>>);             \
  template void head_rms_norm_backward<T>(Device&, MatrixRef<const T>, MatrixRef<const T>,       \
                                          Vector<const master_t<T>>, Matrix<const master_t<T>>,  \
                                          MatrixRef<T>, Vector<master_t<T>>, Vector<master_t<T>>, \
                                          const RowSegments&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
