// ranks: 1
#include "nanotron/kernels/optim/orthogonalise.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

template <class M>
class Orthogonalise : public KernelTest<M> {
 protected:
  // P^T P, which is the identity except for columns that are zero.
  static double worst_product(const Array<M>& p, index_t m, index_t r, index_t zero_from) {
    double worst = 0.0;
    for (index_t a = 0; a < r; ++a) {
      for (index_t b = 0; b < r; ++b) {
        double dot = 0.0;
        for (index_t i = 0; i < m; ++i)
          dot += static_cast<double>(p.host[i * r + a]) * static_cast<double>(p.host[i * r + b]);
        worst = larger(worst, std::abs(dot - (a == b && a < zero_from ? 1.0 : 0.0)));
      }
    }
    return worst;
  }
};
using MasterTypes = testing::Types<double, float>;
TYPED_TEST_SUITE(Orthogonalise, MasterTypes);

TYPED_TEST(Orthogonalise, GivesOrthonormalColumnsOfTheSameSpan) {
  using M = TypeParam;
  const double u = unit_roundoff<M>();
  for (const auto& [m, r] : {std::pair<index_t, index_t>{1, 1}, {64, 1}, {64, 4}, {5, 5}, {3001, 8}}) {
    auto p = Array<M>::random(m * r, 3, 1e-9);
    const std::vector<M> before = p.host;
    kernels::orthogonalise<M>(this->device_, p.matrix(m, r));
    this->device_.fence();
    p.pull();
    EXPECT_LT(this->worst_product(p, m, r, r), 100 * u) << m << " " << r;
    for (index_t c = 0; c < r; ++c) {  // of column c of the input columns 0 to c of the result leave nothing
      std::vector<double> rest(static_cast<std::size_t>(m));
      double size = 0.0, left = 0.0;
      for (index_t i = 0; i < m; ++i) rest[i] = static_cast<double>(before[i * r + c]), size += rest[i] * rest[i];
      for (index_t k = 0; k <= c; ++k) {
        double dot = 0.0;
        for (index_t i = 0; i < m; ++i) dot += rest[i] * static_cast<double>(p.host[i * r + k]);
        for (index_t i = 0; i < m; ++i) rest[i] -= dot * static_cast<double>(p.host[i * r + k]);
      }
      for (const double x : rest) left += x * x;
      EXPECT_LT(std::sqrt(left / size), 1000 * u) << m << " " << r << " column " << c;
    }
  }
}

TYPED_TEST(Orthogonalise, DependentColumnsBecomeOtherDirections) {
  using M = TypeParam;
  const index_t m = 40, r = 4;
  auto p = Array<M>::random(m * r, 5);
  for (index_t i = 0; i < m; ++i) p.host[i * r + 2] = M(3) * p.host[i * r] - p.host[i * r + 1];
  for (index_t i = 0; i < m; ++i) p.host[i * r + 3] = M(0);
  p.push();
  kernels::orthogonalise<M>(this->device_, p.matrix(m, r));
  this->device_.fence();
  p.pull();
  EXPECT_LT(this->worst_product(p, m, r, r), 20 * unit_roundoff<M>());
}

TYPED_TEST(Orthogonalise, MoreColumnsThanRowsLeaveZeros) {
  using M = TypeParam;
  auto p = Array<M>::random(3 * 5, 6);
  kernels::orthogonalise<M>(this->device_, p.matrix(3, 5));
  this->device_.fence();
  p.pull();
  EXPECT_LT(this->worst_product(p, 3, 5, 3), 20 * unit_roundoff<M>());
}

// Numbers that are not finite must show in the sum of gradients: products with the original do.
TYPED_TEST(Orthogonalise, EndsOnNumbersThatAreNotFinite) {
  using M = TypeParam;
  auto p = Array<M>::random(8 * 2, 7);
  p.host[3] = std::numeric_limits<M>::quiet_NaN();
  p.push();
  kernels::orthogonalise<M>(this->device_, p.matrix(8, 2));
  this->device_.fence();
  p.pull();
  EXPECT_LT(this->worst_product(p, 8, 2, 2), 20 * unit_roundoff<M>());
}

}  // namespace
}  // namespace nanotron::test
