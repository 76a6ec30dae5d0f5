#include "nanotron/kernels/optim/eigenbasis.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "nanotron/base/error.hpp"

// Of LAPACK, column-major; Fortran passes the lengths of strings behind all arguments.
extern "C" {
void dsyevd_(const char* jobz, const char* uplo, const std::int32_t* n, double* a, const std::int32_t* lda, double* w,
             double* work, const std::int32_t* lwork, std::int32_t* iwork, const std::int32_t* liwork,
             std::int32_t* info, std::size_t, std::size_t);
void dgeqrf_(const std::int32_t* m, const std::int32_t* n, double* a, const std::int32_t* lda, double* tau,
             double* work, const std::int32_t* lwork, std::int32_t* info);
void dorgqr_(const std::int32_t* m, const std::int32_t* n, const std::int32_t* k, double* a, const std::int32_t* lda,
             const double* tau, double* work, const std::int32_t* lwork, std::int32_t* info);
}

namespace nanotron::kernels {
namespace {

constexpr double roundings = 16.0;

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

void require_done(std::int32_t info, const char* what, std::int32_t n) {
  if (info == 0) return;
  fail(ExitCode::system_error, {.what = std::string(what) + " of LAPACK failed for a matrix of side " +
                                        std::to_string(n) + ", info " + std::to_string(info)});
}

// Memory of a decomposition, in the workspace.
struct Buffers {
  Buffers(index_t side, const EigenWorkspace& w)
      : n(static_cast<std::int32_t>(side)),
        columns{w.reals, at(side * side)},
        given{columns.data() + columns.size(), at(side * side)},
        values{given.data() + given.size(), at(side)},
        tau{values.data() + values.size(), at(side)},
        work{tau.data() + tau.size(), eigen_sizes(side).reals - 2 * at(side * side) - 2 * at(side)},
        is_null{w.integers, at(side)},
        integers{w.integers + side, eigen_sizes(side).integers - at(side)} {}
  double* column(index_t j) const { return columns.data() + j * n; }

  std::int32_t n;
  std::span<double> columns, given, values, tau, work;
  std::span<std::int32_t> is_null, integers;
};

// Columns that are null <- zeros; then columns <- R and the reflectors of Q.
void factorise(const Buffers& b) {
  std::ranges::copy(b.given, b.columns.begin());
  for (std::int32_t j = 0; j < b.n; ++j) {
    if (b.is_null[at(j)] != 0) std::fill_n(b.column(j), b.n, 0.0);
  }
  const auto size = static_cast<std::int32_t>(b.work.size());
  std::int32_t info = 0;
  dgeqrf_(&b.n, &b.n, b.columns.data(), &b.n, b.tau.data(), b.work.data(), &size, &info);
  require_done(info, "dgeqrf", b.n);
}

// given <- its orthonormal basis. limit: of a diagonal of R that is a rounding error.
void orthonormalise(const Buffers& b, double limit) {
  for (bool has_more = true; has_more;) {
    factorise(b);
    has_more = false;
    for (index_t j = 0; j < b.n; ++j) {
      if (b.is_null[at(j)] != 0 || std::abs(b.column(j)[j]) > limit) continue;
      b.is_null[at(j)] = 1;
      has_more = true;
    }
  }
  for (index_t j = 0; j < b.n; ++j) b.values[at(j)] = b.column(j)[j] < 0.0 ? -1.0 : 1.0;
  const auto size = static_cast<std::int32_t>(b.work.size());
  std::int32_t info = 0;
  dorgqr_(&b.n, &b.n, &b.n, b.columns.data(), &b.n, b.tau.data(), b.work.data(), &size, &info);
  require_done(info, "dorgqr", b.n);
}

// q <- the columns, each times its sign.
template <class M>
void write(const Buffers& b, M* q) {
  for (index_t i = 0; i < b.n; ++i) {
    for (index_t j = 0; j < b.n; ++j) q[i * b.n + j] = static_cast<M>(b.values[at(j)] * b.column(j)[i]);
  }
}

double rounding_of(double largest, double eps) { return roundings * eps * largest; }

}  // namespace

EigenSizes eigen_sizes(index_t n) {
  // Of dsyevd with eigenvectors, which needs more than the blocks of dgeqrf and dorgqr.
  const std::size_t side = at(n), work = std::max(1 + 6 * side + 2 * side * side, 64 * side);
  return {2 * side * side + 2 * side + work, side + 3 + 5 * side};
}

template <class M>
void first_basis(const M* a, M* q, index_t n, const EigenWorkspace& workspace) {
  const Buffers b(n, workspace);
  std::ranges::copy(std::span<const M>(a, at(n * n)), b.columns.begin());
  const auto reals = static_cast<std::int32_t>(b.work.size()), integers = static_cast<std::int32_t>(b.integers.size());
  std::int32_t info = 0;
  dsyevd_("V", "L", &b.n, b.columns.data(), &b.n, b.values.data(), b.work.data(), &reals, b.integers.data(), &integers,
          &info, 1, 1);
  require_done(info, "dsyevd", b.n);
  const double limit = rounding_of(b.values[at(n - 1)], std::numeric_limits<M>::epsilon());
  for (index_t j = 0; j < n; ++j) {
    const std::span<const double> vector(b.column(n - 1 - j), at(n));
    const double sign = *std::ranges::max_element(vector, {}, [](double x) { return std::abs(x); }) < 0.0 ? -1.0 : 1.0;
    std::ranges::transform(vector, b.given.data() + j * n, [sign](double x) { return sign * x; });
    b.is_null[at(j)] = b.values[at(n - 1 - j)] <= limit ? 1 : 0;
  }
  orthonormalise(b, 0.0);
  write(b, q);
}

template <class M>
void next_basis(const M* aq, M* q, index_t n, std::int32_t* order, const EigenWorkspace& workspace) {
  const Buffers b(n, workspace);
  std::ranges::fill(b.values, 0.0);
  for (index_t i = 0; i < n; ++i) {
    for (index_t j = 0; j < n; ++j)
      b.values[at(j)] += static_cast<double>(q[i * n + j]) * static_cast<double>(aq[i * n + j]);
  }
  const double limit = rounding_of(std::ranges::max(b.values), std::numeric_limits<M>::epsilon());
  for (double& value : b.values) value = value <= limit ? 0.0 : value;
  std::iota(order, order + n, 0);
  std::stable_sort(order, order + n, [&](std::int32_t i, std::int32_t j) { return b.values[at(i)] > b.values[at(j)]; });
  for (index_t j = 0; j < n; ++j) {
    b.is_null[at(j)] = b.values[at(order[j])] == 0.0 ? 1 : 0;
    for (index_t i = 0; i < n; ++i) b.given[at(j * n + i)] = static_cast<double>(aq[i * n + order[j]]);
  }
  orthonormalise(b, limit);
  write(b, q);
}

#define NANOTRON_INSTANTIATE(M)                                               \
  template void first_basis<M>(const M*, M*, index_t, const EigenWorkspace&); \
  template void next_basis<M>(const M*, M*, index_t, std::int32_t*, const EigenWorkspace&);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
