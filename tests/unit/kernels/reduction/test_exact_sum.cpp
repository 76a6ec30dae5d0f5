// ranks: 1
#include <limits>
#include <numeric>

#include "unit/kernels/kernel_test.hpp"
#include "nanotron/kernels/reduction/exact_sum.hpp"

namespace nanotron::test {
namespace {

using kernels::ExactParts;
using kernels::Quanta;

class ExactSum : public testing::Test {
 protected:
  // The sum of squares in `pieces` pieces, as ranks would make it.
  template <class M>
  double squares(const Array<M>& x, index_t pieces) {
    double largest = 0.0;
    const auto each = [&](const auto& f) {
      for (index_t p = 0; p < pieces; ++p) {
        const index_t begin = x.size() * p / pieces, end = x.size() * (p + 1) / pieces;
        f(Vector<const M>(x.data() + begin, end - begin));
      }
    };
    each([&](const Vector<const M>& part) {
      largest = std::max(largest, kernels::largest_magnitude<M>(device_, part));
    });
    const Quanta quanta(largest * largest);
    ExactParts sum;
    each([&](const Vector<const M>& part) {
      const ExactParts more = kernels::sum_of_squares<M>(device_, part, quanta);
      sum.coarse += more.coarse;
      sum.fine += more.fine;
    });
    return kernels::value(sum, quanta);
  }

  Timers timers_;
  Device device_{timers_};
};

TEST_F(ExactSum, DoesNotDependOnOrderOrOwner) {
  const index_t n = 100'003;
  auto x = Array<float>::random(n, 1);
  for (std::size_t i = 0; i < x.host.size(); ++i) x.host[i] *= std::exp2f(static_cast<float>(i % 40) - 30.0f);
  x.push();
  const double whole = squares(x, 1);
  long double reference = 0;
  for (const float v : x.host) reference += static_cast<long double>(v) * static_cast<long double>(v);
  EXPECT_NEAR(whole, static_cast<double>(reference), 1e-15 * whole);
  for (const index_t pieces : {2, 3, 7, 64}) EXPECT_EQ(squares(x, pieces), whole);
  std::shuffle(x.host.begin(), x.host.end(), std::mt19937(3));
  x.push();
  EXPECT_EQ(squares(x, 5), whole);
}

TEST_F(ExactSum, OfDoublesOfBothSigns) {
  const auto x = Array<double>::random(70'001, 2, 1e8);
  const Quanta quanta(kernels::largest_magnitude<double>(device_, x.read()));
  const ExactParts whole = kernels::sum(device_, x.read(), quanta);
  const long double reference = std::accumulate(x.host.begin(), x.host.end(), 0.0L);
  EXPECT_NEAR(kernels::value(whole, quanta), static_cast<double>(reference), 1e-3);  // 70,001 terms of 4e8 to 2^-60
  ExactParts parts;
  for (const auto& [begin, count] : {std::pair{0, 1}, {1, 40'000}, {40'001, 30'000}}) {
    const ExactParts more = kernels::sum(device_, Vector<const double>(x.data() + begin, count), quanta);
    parts.coarse += more.coarse;
    parts.fine += more.fine;
  }
  EXPECT_EQ(parts.coarse, whole.coarse);
  EXPECT_EQ(parts.fine, whole.fine);
}

TEST_F(ExactSum, ExtremesAreSums) {
  EXPECT_EQ(squares(Array<double>(5, 0.0), 1), 0.0);
  EXPECT_EQ(squares(Array<double>(4, 3.0), 2), 36.0);
  EXPECT_NEAR(squares(Array<double>(3, 1e150), 1) / 3e300, 1.0, 1e-15);
  EXPECT_NEAR(squares(Array<float>(7, 1e-30), 1) / 7e-60, 1.0, 1e-6);
}

TEST_F(ExactSum, FindsWhatIsNotFinite) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity()}) {
    auto x = Array<double>::random(20'000, 4);
    x.host[17'001] = bad;
    x.push();
    EXPECT_EQ(kernels::largest_magnitude<double>(device_, x.read()), std::numeric_limits<double>::infinity());
  }
  EXPECT_EQ(kernels::largest_magnitude<float>(device_, Vector<const float>()), 0.0);
}

}  // namespace
}  // namespace nanotron::test
