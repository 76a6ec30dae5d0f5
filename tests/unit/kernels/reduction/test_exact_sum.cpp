// ranks: 1
#include <limits>
#include <numeric>

#include "nanotron/kernels/reduction/exact_sum.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::ExactSum;

class ExactSums : public testing::Test {
 protected:
  template <class M>
  ExactSum squares_of(const Vector<const M>& x) {
    kernels::sum_of_squares<M>(device_, x, result_);
    return values_of(result_).front();
  }
  template <class X>
  ExactSum sum_of(const Vector<const X>& x) {
    kernels::sum(device_, x, result_);
    return values_of(result_).front();
  }
  // The sum of squares in `pieces` pieces, as ranks would make it.
  template <class M>
  double squares(const Array<M>& x, index_t pieces) {
    ExactSum sum;
    for (index_t p = 0; p < pieces; ++p) {
      const index_t begin = x.size() * p / pieces, end = x.size() * (p + 1) / pieces;
      sum += squares_of<M>(Vector<const M>(x.data() + begin, end - begin));
    }
    return kernels::value(sum);
  }

  Timers timers_;
  Device device_{timers_};
  Kokkos::View<ExactSum*, Kokkos::LayoutRight, MemorySpace> result_{"sum", 1}, both_{"sums", 2};
  Array<std::int64_t> place_{1};
};

TEST_F(ExactSums, DoesNotDependOnOrderOrOwner) {
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

TEST_F(ExactSums, OfDoublesOfBothSigns) {
  const auto x = Array<double>::random(70'001, 2, 1e8);
  const ExactSum whole = sum_of<double>(x.read());
  const long double reference = std::accumulate(x.host.begin(), x.host.end(), 0.0L);
  EXPECT_NEAR(kernels::value(whole), static_cast<double>(reference), 1e-3);  // 70,001 terms of 4e8 to 2^-84
  ExactSum parts;
  for (const auto& [begin, count] : {std::pair{0, 1}, {1, 40'000}, {40'001, 30'000}}) {
    parts += sum_of<double>(Vector<const double>(x.data() + begin, count));
  }
  EXPECT_EQ(parts.top, whole.top);
  for (int i = 0; i < ExactSum::places; ++i) EXPECT_EQ(parts.digits[i], whole.digits[i]);
}

// Terms over hundreds of binary places: a rank that has only small ones cuts them at the places of the largest of all.
TEST_F(ExactSums, RanksOfDifferentMagnitude) {
  auto x = Array<double>::random(40'000, 5);
  for (std::size_t i = 0; i < x.host.size(); ++i) x.host[i] = std::ldexp(x.host[i], static_cast<int>(i / 200) - 100);
  x.push();
  const double whole = squares(x, 1);
  for (const index_t pieces : {2, 9, 200, 40'000}) EXPECT_EQ(squares(x, pieces), whole);
  const std::vector<ExactSum> ranks = {squares_of<double>(Vector<const double>(x.data(), 200)),
                                       squares_of<double>(Vector<const double>(x.data() + 200, 39'800))};
  // What all-reduces do between top_place and at_place, and after it.
  const std::int64_t largest = std::max(ranks[0].top, ranks[1].top);
  ExactSum all;
  all.top = largest;
  for (const ExactSum& rank : ranks) {
    set_values(result_, std::vector{rank});
    kernels::top_place(device_, result_, place_.vector());
    EXPECT_EQ(values_of(place_.vector()).front(), rank.top);
    set_values(place_.vector(), std::vector{largest});
    kernels::at_place(device_, place_.read(), result_);
    const ExactSum below = values_of(result_).front();
    EXPECT_EQ(below.top, largest);
    for (int i = 0; i < ExactSum::places; ++i) all.digits[i] += below.digits[i];
  }
  EXPECT_EQ(kernels::value(all), whole);
  set_values(both_, ranks);
  EXPECT_EQ(kernels::value(sum_of<ExactSum>(both_)), whole);
  EXPECT_EQ(kernels::value(sum_of<ExactSum>(Vector<const ExactSum>())), 0.0);
}

// Beside a largest term of 1, terms of 2^-80.
TEST_F(ExactSums, SmallTermsAreNotLost) {
  auto x = Array<double>(100'000, 0x1p-40);
  x.host[77] = 1.0;
  x.push();
  ExactSum sum = squares_of<double>(x.read());
  EXPECT_EQ(kernels::value(sum), 1.0);
  sum.digits[0] = 0;
  EXPECT_EQ(kernels::value(sum), 99'999 * 0x1p-80);
}

TEST_F(ExactSums, ExtremesAreSums) {
  EXPECT_EQ(squares(Array<double>(5, 0.0), 1), 0.0);
  EXPECT_EQ(squares(Array<double>(4, 3.0), 2), 36.0);
  EXPECT_NEAR(squares(Array<double>(3, 1e150), 1) / 3e300, 1.0, 1e-15);
  EXPECT_NEAR(squares(Array<float>(7, 1e-30), 1) / 7e-60, 1.0, 1e-6);
}

TEST_F(ExactSums, FindsWhatIsNotFinite) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), infinity, -infinity, 1e200}) {
    auto x = Array<double>::random(40'000, 4);
    x.host[17'001] = bad;
    x.push();
    EXPECT_EQ(squares(x, 1), infinity);
    EXPECT_EQ(squares(x, 3), infinity);
    EXPECT_EQ(std::isfinite(kernels::value(sum_of<double>(x.read()))), std::isfinite(bad));
  }
  EXPECT_EQ(kernels::value(squares_of<float>(Vector<const float>())), 0.0);
}

}  // namespace
}  // namespace nanotron::test
