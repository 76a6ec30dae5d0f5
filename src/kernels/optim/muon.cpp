#include "nanotron/kernels/optim/muon.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/kernels/optim/update_operands.hpp"
#include "nanotron/kernels/reduction/exact_sum.hpp"

namespace nanotron::kernels {
namespace {

constexpr double coefficient_a = 3.4445, coefficient_b = -4.7750, coefficient_c = 2.0315;
constexpr double smallest_norm = 1e-7;
constexpr index_t alignment = 64;  // elements

index_t aligned(index_t n) { return (n + alignment - 1) / alignment * alignment; }

template <class M, class Store>
void run_descent(Device& device, Vector<M> p, MatrixRef<const M> direction, index_t first, M keep, M rate,
                 Vector<const UpdateScalars> scalars, const Store& copy) {
  M* const parameter = p.data();
  const UpdateScalars* const decided = scalars.data();
  for_each_piece<M>(
      device, "descend", static_cast<index_t>(p.extent(0)),
      KOKKOS_LAMBDA(const Row& row, const index_t begin, const index_t count) {
        if (!decided->updates) return;
        const Store stored = copy;
        row.for_each(count, [=](const index_t n) {
          const index_t i = begin + n, at = first + i;
          const M updated = keep * parameter[i] - rate * direction(at / direction.columns, at % direction.columns);
          parameter[i] = updated;
          stored(i, Width<1>{}, Chunk<M, 1>{updated});
        });
      });
}

// x (n) *= 1 / max(|x|, smallest_norm), for the sum of its squares.
template <class M>
void normalise(Device& device, Vector<M> x, Vector<const ExactSum> squares) {
  M* const element = x.data();
  const ExactSum* const sum = squares.data();
  for_each_piece<M>(
      device, "normalise", static_cast<index_t>(x.extent(0)),
      KOKKOS_LAMBDA(const Row& row, const index_t begin, const index_t count) {
        const double norm = std::sqrt(value(*sum));
        const M scale = static_cast<M>(1.0 / (norm < smallest_norm ? smallest_norm : norm));
        row.for_each(count, [=](const index_t i) { element[begin + i] *= scale; });
      });
}

}  // namespace

template <class M>
void nesterov(Device& device, Vector<const M> g, Vector<M> m, Vector<M> u, double beta,
              Vector<const UpdateScalars> scalars) {
  NANOTRON_REQUIRE(m.extent(0) == g.extent(0) && u.extent(0) == g.extent(0), "nesterov: {} gradients, {} momenta",
                   g.extent(0), m.extent(0));
  const M keep = static_cast<M>(beta), rest = static_cast<M>(1.0 - beta);
  const M* const gradient = g.data();
  M* const momentum = m.data();
  M* const ahead = u.data();
  const UpdateScalars* const decided = scalars.data();
  const KernelRegion kernel(device, "nesterov", reads(g, m), writes(u, m));
  for_each_piece<M>(
      device, "nesterov", static_cast<index_t>(g.extent(0)),
      KOKKOS_LAMBDA(const Row& row, const index_t begin, const index_t count) {
        if (!decided->updates) return;
        const M clip = static_cast<M>(decided->gradient_scale);
        row.for_each(count, [=](const index_t n) {
          const index_t i = begin + n;
          const M part = rest * (clip * gradient[i]);
          const M sum = keep * momentum[i] + part;
          momentum[i] = sum;
          ahead[i] = keep * sum + part;
        });
      });
}

index_t orthogonalise_workspace(index_t rows, index_t columns) {
  const index_t side = std::min(rows, columns);
  return aligned(rows * columns) + 2 * aligned(side * side);
}

template <class M>
void orthogonalise(Device& device, Matrix<M> x, Vector<M> workspace, int steps) {
  const KernelRegion kernel(device, "newton-schulz", reads(x), writes(x));
  const auto rows = static_cast<index_t>(x.extent(0)), columns = static_cast<index_t>(x.extent(1));
  const index_t side = std::min(rows, columns), size = rows * columns;
  NANOTRON_REQUIRE(static_cast<index_t>(workspace.extent(0)) >= orthogonalise_workspace(rows, columns),
                   "orthogonalise: a workspace of {} elements is too small for ({}, {})", workspace.extent(0), rows,
                   columns);
  const Vector<M> whole(x.data(), size);
  M* const behind = workspace.data() + aligned(size);
  const Vector<ExactSum> squares(reinterpret_cast<ExactSum*>(behind), 1);  // before the Gram matrix is there
  sum_of_squares<M>(device, whole, squares);
  normalise<M>(device, whole, squares);

  const bool wide = rows <= columns;
  const Op left = wide ? Op::none : Op::transpose, right = wide ? Op::transpose : Op::none;
  Matrix<M> from = x, to(workspace.data(), rows, columns);
  const Matrix<M> gram(behind, side, side), polynomial(behind + aligned(side * side), side, side);
  for (int step = 0; step < steps; ++step) {
    gemm<M, M>(device, left, right, 1.0, from, from, 0.0, gram);
    copy_matrix<M>(device, gram, polynomial);
    gemm<M, M>(device, Op::none, Op::none, coefficient_c, gram, gram, coefficient_b, polynomial);
    copy_matrix<M>(device, from, to);
    if (wide) {
      gemm<M, M>(device, Op::none, Op::none, 1.0, polynomial, from, coefficient_a, to);
    } else {
      gemm<M, M>(device, Op::none, Op::none, 1.0, from, polynomial, coefficient_a, to);
    }
    std::swap(from, to);
  }
  if (steps % 2 != 0) copy_matrix<M>(device, from, x);
}

template <class M>
void descend(Device& device, Vector<M> p, MatrixRef<const M> direction, index_t first, double keep, double rate,
             Vector<const UpdateScalars> scalars, Vector<bf16> copy) {
  const KernelRegion kernel(device, "descend", reads(p, p), writes(p, copy));
  with_copy(copy, p.extent(0), [&](const auto& stored) {
    run_descent<M>(device, p, direction, first, static_cast<M>(keep), static_cast<M>(rate), scalars, stored);
  });
}

#define NANOTRON_INSTANTIATE(M)                                                                                   \
  template void nesterov<M>(Device&, Vector<const M>, Vector<M>, Vector<M>, double, Vector<const UpdateScalars>); \
  template void orthogonalise<M>(Device&, Matrix<M>, Vector<M>, int);                                             \
  template void descend<M>(Device&, Vector<M>, MatrixRef<const M>, index_t, double, double,                       \
                           Vector<const UpdateScalars>, Vector<bf16>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
