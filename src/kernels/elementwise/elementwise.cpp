#include "nanotron/kernels/elementwise/elementwise.hpp"

#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/base/random.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "kernels/loop/segment_sums.hpp"

namespace nanotron::kernels {
namespace {

template <class T>
NANOTRON_FUNCTION T of_double(double value) {
  if constexpr (std::is_same_v<T, bf16>)
    return bf16(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

}  // namespace

template <class T>
void fill(Device& device, Vector<T> x, double value) {
  const KernelRegion kernel(device, "fill", reads(), writes(x));
  T* const data = x.data();
  const T element = of_double<T>(value);
  for_each_element(
      device, "fill", static_cast<index_t>(x.extent(0)),
      KOKKOS_LAMBDA(const index_t i) { data[i] = element; });
}

template <class M>
void fill_normal(Device& device, Vector<M> x, std::uint32_t stream) {
  const KernelRegion kernel(device, "fill_normal", reads(), writes(x));
  M* const data = x.data();
  for_each_element(
      device, "fill_normal", static_cast<index_t>(x.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        data[i] = static_cast<M>(normal(0, stream, static_cast<std::uint64_t>(i)));
      });
}

template <class T>
void swap(Device& device, Vector<T> x, Vector<T> y) {
  NANOTRON_REQUIRE(x.extent(0) == y.extent(0), "swap: {} elements with {}", x.extent(0), y.extent(0));
  const KernelRegion kernel(device, "swap", reads(x, y), writes(x, y));
  T* const a = x.data();
  T* const b = y.data();
  for_each_element(
      device, "swap", static_cast<index_t>(x.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        const T value = a[i];
        a[i] = b[i];
        b[i] = value;
      });
}

template <class T>
void add(Device& device, Vector<const T> x, Vector<T> y) {
  const KernelRegion kernel(device, "add", reads(x, y), writes(y));
  using M = master_t<T>;
  NANOTRON_REQUIRE(x.extent(0) == y.extent(0), "add: {} elements to {}", x.extent(0), y.extent(0));
  const T* const from = x.data();
  T* const to = y.data();
  for_each_element(
      device, "add", static_cast<index_t>(x.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        to[i] = static_cast<T>(static_cast<M>(to[i]) + static_cast<M>(from[i]));
      });
}

template <class T>
void bias_add(Device& device, MatrixRef<T> y, Vector<const master_t<T>> bias) {
  const KernelRegion kernel(device, "bias_add", reads(y, bias), writes(y));
  using M = master_t<T>;
  for_each_row(
      device, "bias_add", y.rows, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        T* const target = y.data + i * y.leading;
        const M* const b = bias.data();
        row.for_each(y.columns, [=](const index_t c) {
          target[c] = static_cast<T>(static_cast<M>(target[c]) + b[c]);
        });
      });
}

template <class T>
void bias_backward(Device& device, MatrixRef<const T> dy, Vector<master_t<T>> dbias,
                   Vector<master_t<T>> workspace, index_t segments) {
  const KernelRegion kernel(device, "bias_backward", reads(dy), writes(dbias));
  using M = master_t<T>;
  const index_t width = dy.columns, rows = dy.rows / segments;
  NANOTRON_REQUIRE(static_cast<index_t>(workspace.extent(0)) >= bias_workspace_size(width, segments) &&
                       rows * segments == dy.rows,
                   "bias_backward: {} rows in {} segments, workspace of {}, needs {}", dy.rows, segments,
                   workspace.extent(0), bias_workspace_size(width, segments));
  M* const partial = workspace.data();
  const index_t count = (rows + pieces_of_segment - 1) / pieces_of_segment;
  for_each_row(
      device, "bias_backward", segments * pieces_of_segment, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t first = at / pieces_of_segment * rows, piece = at % pieces_of_segment;
        M* const sums = partial + at * width;
        row.for_each(width, [=](const index_t c) { sums[c] = 0; });
        const index_t end = rows < (piece + 1) * count ? rows : (piece + 1) * count;
        for (index_t i = piece * count; i < end; ++i) {
          const T* const source = dy.data + (first + i) * dy.leading;
          row.for_each(width, [=](const index_t c) { sums[c] += static_cast<M>(source[c]); });
        }
      });
  add_segment_sums<M>(device, partial, segments, width, dbias.data());
}

index_t bias_workspace_size(index_t columns, index_t segments) { return segments * pieces_of_segment * columns; }

#define NANOTRON_INSTANTIATE(T)                                                    \
  template void fill<T>(Device&, Vector<T>, double);                               \
  template void add<T>(Device&, Vector<const T>, Vector<T>);                       \
  template void bias_add<T>(Device&, MatrixRef<T>, Vector<const master_t<T>>);     \
  template void bias_backward<T>(Device&, MatrixRef<const T>, Vector<master_t<T>>, \
                                 Vector<master_t<T>>, index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
template void swap<double>(Device&, Vector<double>, Vector<double>);
template void swap<float>(Device&, Vector<float>, Vector<float>);
template void fill<std::int64_t>(Device&, Vector<std::int64_t>, double);
template void fill_normal<double>(Device&, Vector<double>, std::uint32_t);
template void fill_normal<float>(Device&, Vector<float>, std::uint32_t);

}  // namespace nanotron::kernels
