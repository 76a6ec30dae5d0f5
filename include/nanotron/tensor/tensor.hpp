#pragma once

// Views of memory that the arena owns. Everything is row-major; the last extent is contiguous.
//
//   Vector<T>  (n)              Matrix<T>  (rows, columns)
//   MatrixRef<T>                a matrix with its own leading dimension, for example a block of columns
//                               of a wider matrix, without a copy. This is what GEMMs take.
//
// A view is a pointer and its extents: pass it by value. Views neither own nor allocate memory.

#include <Kokkos_Core.hpp>

#include <type_traits>
#include <utility>

#include "nanotron/base/types.hpp"

namespace nanotron {

using ExecutionSpace = Kokkos::DefaultExecutionSpace;
using MemorySpace = ExecutionSpace::memory_space;

template <class T>
using Vector = Kokkos::View<T*, Kokkos::LayoutRight, MemorySpace, Kokkos::MemoryUnmanaged>;

template <class T>
using Matrix = Kokkos::View<T**, Kokkos::LayoutRight, MemorySpace, Kokkos::MemoryUnmanaged>;

/// What Kokkos::create_mirror_view() makes of a View; Kokkos' own name for it differs in later versions.
template <class View>
using HostMirror = decltype(Kokkos::create_mirror_view(std::declval<const View&>()));

/// The number of elements of a vector or a matrix, also of one without memory, in a plan. (Kokkos' own size() is 0
/// there from 4.6 on.)
template <class View>
index_t elements_of(const View& x) {
  return static_cast<index_t>(x.extent(0)) * static_cast<index_t>(x.extent(1));
}
/// All elements of a matrix, row by row.
template <class T>
Vector<T> flat(const Matrix<T>& x) {
  return Vector<T>(x.data(), elements_of(x));
}

template <class T>
struct MatrixRef {
  T* data = nullptr;
  index_t rows = 0;
  index_t columns = 0;
  index_t leading = 0;  // elements from one row to the next, >= columns

  MatrixRef() = default;
  NANOTRON_FUNCTION MatrixRef(T* data_, index_t rows_, index_t columns_, index_t leading_)
      : data(data_), rows(rows_), columns(columns_), leading(leading_) {}
  NANOTRON_FUNCTION MatrixRef(T* data_, index_t rows_, index_t columns_)
      : MatrixRef(data_, rows_, columns_, columns_) {}
  MatrixRef(const Matrix<T>& m)  // NOLINT: a Matrix is a MatrixRef
      : MatrixRef(m.data(), static_cast<index_t>(m.extent(0)), static_cast<index_t>(m.extent(1))) {}
  template <class U>
  requires std::is_same_v<T, const U> NANOTRON_FUNCTION MatrixRef(const MatrixRef<U>& m)  // NOLINT: mutable to const
      : MatrixRef(m.data, m.rows, m.columns, m.leading) {}
  template <class U>
  requires std::is_same_v<T, const U> MatrixRef(const Matrix<U>& m)  // NOLINT
      : MatrixRef(m.data(), static_cast<index_t>(m.extent(0)), static_cast<index_t>(m.extent(1))) {}

  NANOTRON_FUNCTION T& operator()(index_t row, index_t column) const { return data[row * leading + column]; }
  NANOTRON_FUNCTION MatrixRef row_block(index_t first, index_t count) const {
    return {data + first * leading, count, columns, leading};
  }
  NANOTRON_FUNCTION MatrixRef column_block(index_t first, index_t count) const {
    return {data + first, rows, count, leading};
  }
};

/// Where kernels run. Some have another form on a GPU, with other buffers; a plan may be for either.
enum class Processor { cpu, gpu };

/// The processor of this build.
inline constexpr Processor built_for = std::is_same_v<MemorySpace, Kokkos::HostSpace> ? Processor::cpu : Processor::gpu;

}  // namespace nanotron
