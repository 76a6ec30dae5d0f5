// ranks: 1
#include "nanotron/kernels/optim/muon.hpp"
#include "support/reference/muon.hpp"
#include "unit/kernels/kernel_test.hpp"
#include "unit/kernels/optim/scalars.hpp"

namespace nanotron::test {
namespace {

using kernels::reference::Plain;
using kernels::reference::product;
using kernels::reference::transposed;

template <class M>
Plain plain_of(const Array<M>& x, index_t rows, index_t columns) {
  Plain plain(rows, columns);
  std::copy(x.host.begin(), x.host.end(), plain.at.begin());
  return plain;
}

template <class M>
class Muon : public KernelTest<M> {
 protected:
  Plain orthogonalised(const Array<M>& x, index_t rows, index_t columns, int steps) {
    Array<M> y(x.size());
    y.host = x.host;
    y.push();
    const Array<M> workspace(kernels::orthogonalise_workspace(rows, columns));
    kernels::orthogonalise<M>(this->device_, y.matrix(rows, columns), workspace.vector(), steps);
    this->device_.fence();
    y.pull();
    return plain_of(y, rows, columns);
  }
};
using MasterTypes = ::testing::Types<double, float>;
TYPED_TEST_SUITE(Muon, MasterTypes);

// Eigenvalues of a symmetric matrix by Jacobi's rotations.
std::vector<double> eigenvalues(Plain a) {
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (index_t p = 0; p < a.rows; ++p) {
      for (index_t q = p + 1; q < a.rows; ++q) {
        if (a(p, q) == 0.0) continue;
        const double angle = 0.5 * std::atan2(2.0 * a(p, q), a(q, q) - a(p, p));
        const double c = std::cos(angle), s = std::sin(angle);
        for (index_t k = 0; k < a.rows; ++k) {
          const double x = a(k, p), y = a(k, q);
          a(k, p) = c * x - s * y, a(k, q) = s * x + c * y;
        }
        for (index_t k = 0; k < a.rows; ++k) {
          const double x = a(p, k), y = a(q, k);
          a(p, k) = c * x - s * y, a(q, k) = s * x + c * y;
        }
      }
    }
  }
  std::vector<double> values;
  for (index_t i = 0; i < a.rows; ++i) values.push_back(a(i, i));
  return values;
}

struct Shape {
  index_t rows, columns;
};
constexpr Shape shapes[] = {{24, 24}, {13, 40}, {40, 13}, {1, 17}, {17, 1}, {1, 1}};

// Of n = 40 terms a sum makes some tens of roundings; the polynomial amplifies small values by 3.4 a step.
TYPED_TEST(Muon, FollowsTheReferenceWhateverShapeAndScale) {
  using M = TypeParam;
  for (const auto& [rows, columns] : shapes) {
    for (const int steps : {1, 4, 5}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns) + ", steps " + std::to_string(steps));
      const auto x = Array<M>::random(rows * columns, 3, 1e-3);
      const Plain ours = this->orthogonalised(x, rows, columns, steps);
      const Plain expected = kernels::reference::orthogonalise(plain_of(x, rows, columns), steps);
      expect_close(ours.at, expected.at, 2000 * unit_roundoff<M>());
    }
  }
}

// O = U f(S) V^T for X = U S V^T: singular values near 1, and O X^T = U f(S) S U^T is symmetric with a spectrum that is
// positive, as of the polar factor alone.
TYPED_TEST(Muon, ComesCloseToThePolarFactor) {
  using M = TypeParam;
  const double rounding = 1e5 * unit_roundoff<M>();
  for (const auto& [rows, columns] : {Shape{13, 40}, Shape{40, 13}, Shape{24, 48}}) {
    const auto x = Array<M>::random(rows * columns, 5);
    Plain matrix = plain_of(x, rows, columns);
    Plain ours = this->orthogonalised(x, rows, columns, 5);
    if (rows > columns) matrix = transposed(matrix), ours = transposed(ours);
    for (const double square : eigenvalues(product(ours, transposed(ours)))) {
      EXPECT_GT(std::sqrt(square), 0.65);
      EXPECT_LT(std::sqrt(square), 1.20);
    }
    const Plain stretch = product(ours, transposed(matrix));
    for (index_t r = 0; r < stretch.rows; ++r) {
      for (index_t c = 0; c < r; ++c) EXPECT_NEAR(stretch(r, c), stretch(c, r), rounding);
    }
    for (const double value : eigenvalues(stretch)) EXPECT_GT(value, 0.0);
  }
}

TYPED_TEST(Muon, LeavesZerosAlone) {
  const Plain ours = this->orthogonalised(Array<TypeParam>(5 * 7), 5, 7, 5);
  for (const double value : ours.at) EXPECT_EQ(value, 0.0);
}

TYPED_TEST(Muon, MomentumLooksAhead) {
  using M = TypeParam;
  const index_t n = 1003;
  auto m = Array<M>(n), u = Array<M>(n);
  std::vector<double> m2(n), u2(n);
  const Scalars half = Scalars::scaled(0.5);
  for (unsigned step = 0; step < 10; ++step) {
    const auto g = Array<M>::random(n, step);
    kernels::nesterov<M>(this->device_, g.read(), m.vector(), u.vector(), 0.95, half.read());
    for (std::size_t i = 0; i < m2.size(); ++i) {
      m2[i] = 0.95 * m2[i] + 0.05 * 0.5 * static_cast<double>(g.host[i]);
      u2[i] = 0.95 * m2[i] + 0.05 * 0.5 * static_cast<double>(g.host[i]);
    }
  }
  this->device_.fence();
  m.pull(), u.pull();
  expect_close(m.host, m2, 40 * unit_roundoff<M>());
  expect_close(u.host, u2, 40 * unit_roundoff<M>());
}

// A part of a block of a matrix, from the middle of a row on.
TYPED_TEST(Muon, DescendsAlongAnyPartOfABlock) {
  using M = TypeParam;
  const index_t rows = 6, columns = 10, width = 4, first = 6, n = 13;
  const auto o = Array<M>::random(rows * columns, 1);
  auto p = Array<M>::random(n, 2);
  std::vector<double> p2(p.host.begin(), p.host.end());
  const MatrixRef<const M> block = MatrixRef<const M>(o.read(rows, columns)).row_block(1, 5).column_block(3, width);
  auto copy = Array<bf16>(n);
  kernels::descend<M>(this->device_, p.vector(), block, first, 0.9, 0.25, Scalars({}).read(), copy.vector());
  this->device_.fence();
  p.pull(), copy.pull();
  for (index_t i = 0; i < n; ++i) {
    const index_t row = 1 + (first + i) / width, column = 3 + (first + i) % width;
    double& expected = p2[static_cast<std::size_t>(i)];
    expected = 0.9 * expected - 0.25 * static_cast<double>(o.host[static_cast<std::size_t>(row * columns + column)]);
  }
  expect_close(p.host, p2, 4 * unit_roundoff<M>());
  for (std::size_t i = 0; i < p.host.size(); ++i) {
    EXPECT_EQ(copy.host[i].bits, bf16(static_cast<float>(p.host[i])).bits);
  }
}

TYPED_TEST(Muon, SkipsWhatTheDeviceDecidedToSkip) {
  using M = TypeParam;
  const index_t n = 5003;
  const auto p = Array<M>::random(n, 1), m = Array<M>::random(n, 2), g = Array<M>(n, NAN);
  const auto u = Array<M>(n);
  const auto copy = Array<bf16>(n, 3.0);
  const Scalars skipped = Scalars::skipped();
  kernels::nesterov<M>(this->device_, g.read(), m.vector(), u.vector(), 0.95, skipped.read());
  kernels::descend<M>(this->device_, p.vector(), g.read(1, n), 0, 0.9, 0.25, skipped.read(), copy.vector());
  this->device_.fence();
  EXPECT_TRUE(is_unchanged(p) && is_unchanged(m) && is_unchanged(copy));
}

}  // namespace
}  // namespace nanotron::test
