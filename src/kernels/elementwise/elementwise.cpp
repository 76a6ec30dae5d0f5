#include "nanotron/kernels/elementwise/elementwise.hpp"

#include <cmath>

#include "kernels/elementwise/row_sums.hpp"
#include "kernels/loop/maxima.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/random.hpp"
#include "nanotron/kernels/loop/loop.hpp"

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
      device, "fill", static_cast<index_t>(x.extent(0)), KOKKOS_LAMBDA(const index_t i) { data[i] = element; });
}

template <class M>
void fill_normal(Device& device, Vector<M> x, std::uint32_t stream) {
  const KernelRegion kernel(device, "fill_normal", reads(), writes(x));
  M* const data = x.data();
  for_each_element(
      device, "fill_normal", static_cast<index_t>(x.extent(0)),
      KOKKOS_LAMBDA(const index_t i) { data[i] = static_cast<M>(normal(0, stream, static_cast<std::uint64_t>(i))); });
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
  NANOTRON_REQUIRE(x.extent(0) == y.extent(0), "add: {} elements to {}", x.extent(0), y.extent(0));
  const T* const from = x.data();
  T* const to = y.data();
  for_each_piece<T>(
      device, "add", static_cast<index_t>(x.extent(0)),
      KOKKOS_LAMBDA(const Row& row, const index_t first, const index_t count) {
        const T* const source = from + first;
        T* const target = to + first;
        row.template for_each_chunk<T>(count, [=](const index_t i, const auto n) {
          const auto a = load(target + i, n), b = load(source + i, n);
          store(target + i, n, [&](const int k) { return a[k] + b[k]; });
        });
      });
}

template <class M>
void add_rows(Device& device, Matrix<const bf16> x, Vector<M> y) {
  const KernelRegion kernel(device, "add_rows", reads(x, y), writes(y));
  const auto rows = static_cast<index_t>(x.extent(0)), n = static_cast<index_t>(x.extent(1));
  NANOTRON_REQUIRE(x.extent(1) == y.extent(0), "add_rows: rows of {} elements to {}", n, y.extent(0));
  const bf16* const from = x.data();
  M* const to = y.data();
  for_each_piece<bf16>(
      device, "add_rows", n, KOKKOS_LAMBDA(const Row& row, const index_t first, const index_t count) {
        row.template for_each_chunk<bf16>(count, [=](const index_t i, const auto width) {
          const bf16* source = from + first + i;
          M* const target = to + first + i;
          auto sum = load(target, width);
          for (index_t r = 0; r < rows; ++r, source += n) {
            const auto addend = load(source, width);
            sum += chunk(width, [&](const int k) { return static_cast<M>(addend[k]); });
          }
          store(target, width, [&](const int k) { return sum[k]; });
        });
      });
}

template <class M>
void add_tree(Device& device, MatrixRef<const M> x, Vector<M> y) {
  NANOTRON_REQUIRE(static_cast<index_t>(y.extent(0)) == x.columns, "add_tree: rows of {} elements to {}", x.columns,
                   y.extent(0));
  const KernelRegion kernel(device, "add_tree", reads(x, y), writes(y));
  for_each_element(
      device, "add_tree", x.columns, KOKKOS_LAMBDA(const index_t c) {
        M stack[TreeStack::depth] = {};
        const auto add = [&](int into, int from) { stack[into] += stack[from]; };
        TreeStack tree;
        for (index_t r = 0; r < x.rows; ++r) {
          stack[tree.top()] = x.data[r * x.leading + c];
          tree.push(add);
        }
        tree.finish(add);
        y.data()[c] += stack[0];
      });
}

template <class T>
void add_column_tree(Device& device, MatrixRef<const T> x, MatrixRef<T> y) {
  using M = master_t<T>;
  NANOTRON_REQUIRE(x.rows == y.rows && x.columns % y.columns == 0, "add_column_tree: ({}, {}) to ({}, {})", x.rows,
                   x.columns, y.rows, y.columns);
  const KernelRegion kernel(device, "add_column_tree", reads(x), writes(y));
  const index_t addends = x.columns / y.columns;
  for_each_element(
      device, "add_column_tree", y.rows * y.columns, KOKKOS_LAMBDA(const index_t i) {
        const index_t row = i / y.columns, column = i % y.columns;
        M stack[TreeStack::depth] = {};
        const auto add = [&](int into, int from) { stack[into] += stack[from]; };
        TreeStack tree;
        for (index_t a = 0; a < addends; ++a) {
          stack[tree.top()] = static_cast<M>(x.data[row * x.leading + a * y.columns + column]);
          tree.push(add);
        }
        tree.finish(add);
        y.data[row * y.leading + column] = static_cast<T>(stack[0]);
      });
}

template <class T>
void add_scaled(Device& device, double factor, Matrix<const T> x, Matrix<const T> z, Matrix<T> y) {
  const KernelRegion kernel(device, "add_scaled", reads(x, z), writes(y));
  NANOTRON_REQUIRE(x.size() == y.size() && z.size() == y.size(), "add_scaled: {} and {} elements to {}", x.size(),
                   z.size(), y.size());
  const T *const from = x.data(), *const base = z.data();
  T* const to = y.data();
  const auto m = static_cast<master_t<T>>(factor);
  for_each_piece<T>(
      device, "add_scaled", static_cast<index_t>(y.size()),
      KOKKOS_LAMBDA(const Row& row, const index_t first, const index_t count) {
        row.template for_each_chunk<T>(count, [=](const index_t i, const auto n) {
          const auto a = load(from + first + i, n), b = load(base + first + i, n);
          store(to + first + i, n, [&](const int k) { return m * a[k] + b[k]; });
        });
      });
}

template <class T>
void scale(Device& device, double factor, Matrix<const T> x, Matrix<T> y) {
  const KernelRegion kernel(device, "scale", reads(x), writes(y));
  NANOTRON_REQUIRE(x.size() == y.size(), "scale: {} elements to {}", x.size(), y.size());
  const T* const from = x.data();
  T* const to = y.data();
  const auto m = static_cast<master_t<T>>(factor);
  for_each_piece<T>(
      device, "scale", static_cast<index_t>(y.size()),
      KOKKOS_LAMBDA(const Row& row, const index_t first, const index_t count) {
        row.template for_each_chunk<T>(count, [=](const index_t i, const auto n) {
          const auto a = load(from + first + i, n);
          store(to + first + i, n, [&](const int k) { return m * a[k]; });
        });
      });
}

template <class T>
void bias_add(Device& device, MatrixRef<T> y, Vector<const master_t<T>> bias) {
  const KernelRegion kernel(device, "bias_add", reads(y, bias), writes(y));
  using M = master_t<T>;
  for_each_row_of<T>(
      device, "bias_add", y.rows, y.columns, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        T* const target = y.data + i * y.leading;
        const M* const b = bias.data();
        row.template for_each_chunk<T>(y.columns, [=](const index_t c, const auto n) {
          const auto value = load(target + c, n);
          const auto b_c = load(b + c, n);
          store(target + c, n, [&](const int k) { return value[k] + b_c[k]; });
        });
      });
}

template <class T>
void bias_backward(Device& device, MatrixRef<const T> dy, Vector<master_t<T>> dbias, Vector<master_t<T>> workspace,
                   index_t segments) {
  add_row_sums<T>(device, dy, pieces_of_bias(pieces_on(device), segments, dy.rows), dbias, workspace);
}

template <class T>
void row_maxima(Device& device, Matrix<const T> x, Vector<float> maxima) {
  const KernelRegion kernel(device, "row_maxima", reads(x), writes(maxima));
  NANOTRON_REQUIRE(x.extent(0) == maxima.extent(0), "{} maxima of {} rows", maxima.extent(0), x.extent(0));
  const T* const from = x.data();
  float* const to = maxima.data();
  const auto columns = static_cast<index_t>(x.extent(1));
  for_each_row(
      device, "row_maxima", static_cast<index_t>(x.extent(0)),
      KOKKOS_LAMBDA(const Row& row, const index_t i) { to[i] = max_abs(row, from + i * columns, columns); });
}

index_t bias_workspace_size(Processor processor, index_t rows, index_t columns, index_t segments) {
  return pieces_of_bias(processor, segments, rows).count() * columns;
}

#define NANOTRON_INSTANTIATE(T)                                                              \
  template void fill<T>(Device&, Vector<T>, double);                                         \
  template void add<T>(Device&, Vector<const T>, Vector<T>);                                 \
  template void add_column_tree<T>(Device&, MatrixRef<const T>, MatrixRef<T>);               \
  template void add_scaled<T>(Device&, double, Matrix<const T>, Matrix<const T>, Matrix<T>); \
  template void scale<T>(Device&, double, Matrix<const T>, Matrix<T>);                       \
  template void bias_add<T>(Device&, MatrixRef<T>, Vector<const master_t<T>>);               \
  template void row_maxima<T>(Device&, Matrix<const T>, Vector<float>);                      \
  template void bias_backward<T>(Device&, MatrixRef<const T>, Vector<master_t<T>>, Vector<master_t<T>>, index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
#define NANOTRON_INSTANTIATE(M)                                      \
  template void swap<M>(Device&, Vector<M>, Vector<M>);              \
  template void add_rows<M>(Device&, Matrix<const bf16>, Vector<M>); \
  template void add_tree<M>(Device&, MatrixRef<const M>, Vector<M>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
template void fill<std::int64_t>(Device&, Vector<std::int64_t>, double);
#define NANOTRON_INSTANTIATE(M) template void fill_normal<M>(Device&, Vector<M>, std::uint32_t);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

template <class T>
void copy_matrix(Device& device, MatrixRef<const T> from, MatrixRef<T> to) {
  NANOTRON_REQUIRE(from.rows == to.rows && from.columns == to.columns, "copy_matrix: {} x {} into {} x {}", from.rows,
                   from.columns, to.rows, to.columns);
  const KernelRegion kernel(device, "copy_matrix", reads(from), writes(to));
  for_each_row(
      device, "copy_matrix", from.rows, KOKKOS_LAMBDA(const Row& row, const index_t r) {
        const T* const source = from.data + r * from.leading;
        T* const target = to.data + r * to.leading;
        row.for_each(from.columns, [=](const index_t c) { target[c] = source[c]; });
      });
}

template <class T>
void copy(Device& device, Vector<const T> from, Vector<T> to) {
  const KernelRegion kernel(device, "copy", reads(from), writes(to));
  if (device.is_planning()) return device.launch_planned();
  if (from.extent(0) > 0) Kokkos::deep_copy(device.exec(), to, from);
}

#define NANOTRON_INSTANTIATE(M) template void copy<M>(Device&, Vector<const M>, Vector<M>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
template void copy<bf16>(Device&, Vector<const bf16>, Vector<bf16>);
template void copy<std::int32_t>(Device&, Vector<const std::int32_t>, Vector<std::int32_t>);
template void copy<std::int64_t>(Device&, Vector<const std::int64_t>, Vector<std::int64_t>);
#define NANOTRON_INSTANTIATE(T) template void copy_matrix<T>(Device&, MatrixRef<const T>, MatrixRef<T>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

namespace {

// double -> float -> bf16 with two roundings to nearest can end on the wrong side. Rounding to odd first prevents it.
NANOTRON_FUNCTION inline float round_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  std::uint32_t bits;
  std::memcpy(&bits, &nearest, sizeof bits);
  const double back = static_cast<double>(nearest);
  const bool inexact = back != x && x == x;
  const bool away = (back > x) == (x > 0.0);  // magnitude was rounded up
  const std::uint32_t truncated = bits - ((inexact && away) ? 1u : 0u);
  const std::uint32_t odd = truncated | (inexact ? 1u : 0u);
  float result;
  std::memcpy(&result, &odd, sizeof result);
  return result;
}

template <class B, class A>
NANOTRON_FUNCTION B converted(const A& x) {
  if constexpr (std::is_same_v<A, double> && std::is_same_v<B, bf16>) {
    return bf16(round_to_odd(x));
  } else if constexpr (std::is_same_v<B, bf16> || std::is_same_v<A, bf16>) {
    return static_cast<B>(static_cast<float>(x));
  } else {
    return static_cast<B>(x);
  }
}

}  // namespace

template <class A, class B>
void cast(Device& device, Vector<const A> x, Vector<B> y) {
  const KernelRegion kernel(device, "cast", reads(x), writes(y));
  NANOTRON_REQUIRE(x.extent(0) == y.extent(0), "cast: {} elements into {}", x.extent(0), y.extent(0));
  const A* const from = x.data();
  B* const to = y.data();
  for_each_element(
      device, "cast", static_cast<index_t>(x.extent(0)),
      KOKKOS_LAMBDA(const index_t i) { to[i] = converted<B>(from[i]); });
}

#define NANOTRON_INSTANTIATE(A)                                            \
  template void cast<A, double>(Device&, Vector<const A>, Vector<double>); \
  template void cast<A, float>(Device&, Vector<const A>, Vector<float>);   \
  template void cast<A, bf16>(Device&, Vector<const A>, Vector<bf16>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
