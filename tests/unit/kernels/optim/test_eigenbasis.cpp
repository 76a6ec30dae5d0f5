// ranks: 1
// Bases of eigenvectors: orthonormal, of the matrix, and continuous where it is singular.
#include "nanotron/kernels/optim/eigenbasis.hpp"
#include "support/reference/muon.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::reference::Plain;
using kernels::reference::product;
using kernels::reference::transposed;

template <class M>
class Eigenbasis : public testing::Test {
 protected:
  static constexpr double eps = 2 * unit_roundoff<M>();

  kernels::EigenWorkspace workspace_for(index_t n) {
    const auto [reals, integers] = kernels::eigen_sizes(n);
    reals_.assign(reals, std::nan(""));
    integers_.assign(integers, -1);
    return {reals_.data(), integers_.data()};
  }
  Plain first(const Plain& a) {
    const std::vector<M> given(a.at.begin(), a.at.end());
    std::vector<M> q(given.size());
    kernels::first_basis<M>(given.data(), q.data(), a.rows, workspace_for(a.rows));
    return plain_of(q, a.rows);
  }
  // After the basis `before`; order: of its columns.
  Plain next(const Plain& a, const Plain& before, std::vector<std::int32_t>& order) {
    const Plain aq = product(a, before);
    const std::vector<M> given(aq.at.begin(), aq.at.end());
    std::vector<M> q(before.at.begin(), before.at.end());
    order.assign(static_cast<std::size_t>(a.rows), -1);
    kernels::next_basis<M>(given.data(), q.data(), a.rows, order.data(), workspace_for(a.rows));
    return plain_of(q, a.rows);
  }
  static Plain plain_of(const std::vector<M>& x, index_t n) {
    Plain plain(n, n);
    std::copy(x.begin(), x.end(), plain.at.begin());
    return plain;
  }

 private:
  std::vector<double> reals_;
  std::vector<std::int32_t> integers_;
};
using MasterTypes = testing::Types<double, float>;
TYPED_TEST_SUITE(Eigenbasis, MasterTypes);

Plain random_matrix(index_t rows, index_t columns, unsigned seed) {
  const auto x = Array<double>::random(rows * columns, seed);
  Plain plain(rows, columns);
  plain.at.assign(x.host.begin(), x.host.end());
  return plain;
}

// The sum of x x^T, with relative errors of `noise`.
Plain gram(const Plain& x, double noise, unsigned seed) {
  Plain g = product(x, transposed(x));
  const Plain error = random_matrix(x.rows, x.rows, seed);
  for (index_t i = 0; i < g.rows; ++i) {
    for (index_t j = 0; j < g.rows; ++j) g(i, j) *= 1.0 + noise * (error(i, j) + error(j, i));
  }
  return g;
}

double largest(const Plain& x) {
  double most = 0.0;
  for (const double v : x.at) most = larger(most, std::abs(v));
  return most;
}

void expect_orthonormal(const Plain& q, double tolerance) {
  const Plain one = product(transposed(q), q);
  for (index_t i = 0; i < q.rows; ++i) {
    for (index_t j = 0; j < q.rows; ++j) EXPECT_NEAR(one(i, j), i == j ? 1.0 : 0.0, tolerance) << i << " " << j;
  }
}

TYPED_TEST(Eigenbasis, FirstHasEigenvectorsInDescendingOrder) {
  for (const index_t n : {1, 2, 17, 40}) {
    SCOPED_TRACE(n);
    const Plain a = gram(random_matrix(n, n + 5, 3), 0.0, 0), q = this->first(a);
    const double tolerance = 40 * this->eps * std::sqrt(static_cast<double>(n));
    expect_orthonormal(q, tolerance);
    const Plain turned = product(transposed(q), product(a, q));
    for (index_t i = 0; i < n; ++i) {
      double most = 0.0;
      for (index_t k = 0; k < n; ++k) most = std::abs(q(k, i)) > std::abs(most) ? q(k, i) : most;
      EXPECT_GT(most, 0.0) << "the sign of vector " << i;
      if (i > 0) {
        EXPECT_LE(turned(i, i), turned(i - 1, i - 1) + tolerance * turned(0, 0));
      }
      for (index_t j = 0; j < n; ++j) {
        if (i == j) continue;
        EXPECT_NEAR(turned(i, j), 0.0, tolerance * turned(0, 0)) << i << " " << j;
      }
    }
  }
}

// Gram-Schmidt of A Q, whose columns are sorted, in fp64.
TYPED_TEST(Eigenbasis, NextIsOneStepOfThePowerIteration) {
  constexpr index_t n = 12;
  const Plain before = this->first(gram(random_matrix(n, n + 3, 5), 0.0, 0));
  const Plain a = gram(random_matrix(n, n + 9, 6), 0.0, 0), aq = product(a, before);
  std::vector<std::int32_t> order;
  const Plain q = this->next(a, before, order);
  const Plain estimates = product(transposed(before), aq);
  Plain expected(n, n);
  for (index_t j = 0; j < n; ++j) {
    const index_t from = order[static_cast<std::size_t>(j)];
    if (j > 0) {
      const index_t last = order[static_cast<std::size_t>(j - 1)];
      EXPECT_GE(estimates(last, last), estimates(from, from));
    }
    std::vector<double> column(n);
    for (index_t i = 0; i < n; ++i) column[static_cast<std::size_t>(i)] = aq(i, from);
    for (index_t pass = 0; pass < 2; ++pass) {
      for (index_t k = 0; k < j; ++k) {
        double dot = 0.0;
        for (index_t i = 0; i < n; ++i) dot += expected(i, k) * column[static_cast<std::size_t>(i)];
        for (index_t i = 0; i < n; ++i) column[static_cast<std::size_t>(i)] -= dot * expected(i, k);
      }
    }
    double norm = 0.0;
    for (const double x : column) norm += x * x;
    for (index_t i = 0; i < n; ++i) expected(i, j) = column[static_cast<std::size_t>(i)] / std::sqrt(norm);
  }
  for (std::size_t i = 0; i < q.at.size(); ++i) EXPECT_NEAR(q.at[i], expected.at[i], 3000 * this->eps);
}

// Of rank 5 of 16, then 10: matrices that differ by rounding have bases that do.
TYPED_TEST(Eigenbasis, IsContinuousWhereTheMatrixIsSingular) {
  constexpr index_t n = 16;
  const Plain x = random_matrix(n, 5, 8), y = random_matrix(n, 10, 9);
  std::vector<Plain> q;
  for (const unsigned i : {0u, 1u}) {
    const Plain before = this->first(gram(x, i * 0.1 * this->eps, 10));
    std::vector<std::int32_t> order;
    q.push_back(this->next(gram(y, i * 0.1 * this->eps, 11), before, order));
    expect_orthonormal(before, 100 * this->eps);
    expect_orthonormal(q[i], 100 * this->eps);
  }
  Plain difference = q[0];
  for (std::size_t i = 0; i < difference.at.size(); ++i) difference.at[i] -= q[1].at[i];
  EXPECT_LT(largest(difference), 1e4 * this->eps);
}

TYPED_TEST(Eigenbasis, OfZerosIsTheIdentity) {
  const Plain q = this->first(Plain(6, 6));
  for (index_t i = 0; i < 6; ++i) {
    for (index_t j = 0; j < 6; ++j) EXPECT_EQ(q(i, j), i == j ? 1.0 : 0.0);
  }
}

}  // namespace
}  // namespace nanotron::test
