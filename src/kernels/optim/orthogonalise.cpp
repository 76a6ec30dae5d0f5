#include "nanotron/kernels/optim/orthogonalise.hpp"

#include <cmath>

#include "nanotron/base/random.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

// A column depends on those before it if projection leaves less than this share of its square.
template <class M>
constexpr double dependent = std::is_same_v<M, double> ? 1e-24 : 1e-10;

template <class M>
NANOTRON_FUNCTION double dot_product(const Row& row, const MatrixRef<M>& p, index_t a, index_t b) {
  return row.template sum<double>(
      p.rows, [=](const index_t i) { return static_cast<double>(p(i, a)) * static_cast<double>(p(i, b)); });
}

// Orthonormalises column j against columns 0 ... j - 1; false if it depends on them.
template <class M>
NANOTRON_FUNCTION bool normalise(const Row& row, const MatrixRef<M>& p, index_t j) {
  const double before = dot_product(row, p, j, j);
  for (int pass = 0; pass < 2; ++pass) {
    for (index_t k = 0; k < j; ++k) {
      const double along = dot_product(row, p, j, k);
      row.for_each(p.rows, [=](const index_t i) {
        p(i, j) = static_cast<M>(static_cast<double>(p(i, j)) - along * static_cast<double>(p(i, k)));
      });
    }
  }
  const double left = dot_product(row, p, j, j);
  if (!(left > dependent<M> * before)) return false;
  const double scale = 1.0 / std::sqrt(left);
  row.for_each(p.rows, [=](const index_t i) { p(i, j) = static_cast<M>(scale * static_cast<double>(p(i, j))); });
  return true;
}

}  // namespace

template <class M>
void orthogonalise(Device& device, Matrix<M> matrix) {
  const KernelRegion kernel(device, "orthogonalise", reads(matrix), writes(matrix));
  const MatrixRef<M> p(matrix);
  constexpr std::uint32_t stream = stream_id("orthogonalise");
  for_each_row(
      device, "orthogonalise", 1, KOKKOS_LAMBDA(const Row& row, const index_t) {
        for (index_t j = 0; j < p.columns; ++j) {
          if (j < p.rows && normalise(row, p, j)) continue;
          row.for_each(p.rows, [=](const index_t i) {
            p(i, j) = static_cast<M>(normal(0, stream, static_cast<std::uint64_t>(i * p.columns + j)));
          });
          if (j < p.rows && normalise(row, p, j)) continue;
          row.for_each(p.rows, [=](const index_t i) { p(i, j) = M(0); });
        }
      });
}

#define NANOTRON_INSTANTIATE(M) template void orthogonalise<M>(Device&, Matrix<M>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
