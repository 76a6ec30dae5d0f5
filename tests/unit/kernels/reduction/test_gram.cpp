// ranks: 1
// Inner products of rows and sums of them, against plain loops.
#include <gtest/gtest.h>

#include "nanotron/base/random.hpp"
#include "nanotron/kernels/reduction/gram.hpp"

namespace nanotron::kernels {
namespace {

template <class M>
class Gram : public testing::Test {
 protected:
  void check(index_t rows, index_t columns, index_t leading) {
    const Kokkos::View<M*, MemorySpace> x("x", static_cast<std::size_t>(rows * leading));
    const auto host = Kokkos::create_mirror_view(x);
    for (std::size_t i = 0; i < x.size(); ++i) host(i) = static_cast<M>(normal(1, 2, i));
    Kokkos::deep_copy(x, host);
    const Kokkos::View<double*, MemorySpace> products("products", static_cast<std::size_t>(gram_pairs(rows)));
    const Kokkos::View<double*, MemorySpace> factors("factors", static_cast<std::size_t>(rows));
    const Kokkos::View<M*, MemorySpace> sum("sum", static_cast<std::size_t>(columns));
    const auto f = Kokkos::create_mirror_view(factors);
    for (index_t r = 0; r < rows; ++r) f(r) = 1.5 - 0.7 * static_cast<double>(r);
    Kokkos::deep_copy(factors, f);
    const MatrixRef<const M> ref(x.data(), rows, columns, leading);
    gram<M>(device_, ref, Vector<double>(products.data(), gram_pairs(rows)));
    combine_rows<M>(device_, ref, Vector<const double>(factors.data(), rows), Vector<M>(sum.data(), columns));

    const auto p = Kokkos::create_mirror_view(products);
    Kokkos::deep_copy(p, products);
    index_t at = 0;
    for (index_t j = 0; j < rows; ++j) {
      for (index_t i = 0; i <= j; ++i, ++at) {
        double expected = 0.0;
        for (index_t c = 0; c < columns; ++c) expected += double(host(i * leading + c)) * double(host(j * leading + c));
        EXPECT_NEAR(p(at), expected, 1e-13 * static_cast<double>(columns + 1)) << i << " " << j;
      }
    }
    const auto s = Kokkos::create_mirror_view(sum);
    Kokkos::deep_copy(s, sum);
    for (index_t c = 0; c < columns; ++c) {
      double expected = 0.0;
      for (index_t r = 0; r < rows; ++r) expected += f(r) * double(host(r * leading + c));
      EXPECT_EQ(s(c), static_cast<M>(expected)) << c;
    }
  }

  Timers timers_;
  Device device_{timers_};
};
using Masters = testing::Types<double, float>;
TYPED_TEST_SUITE(Gram, Masters);

TYPED_TEST(Gram, FollowsPlainLoops) {
  for (const index_t rows : {1, 2, 3, 7}) {
    for (const index_t columns : {0, 1, 31, 1000}) this->check(rows, columns, columns + 5);
  }
}

}  // namespace
}  // namespace nanotron::kernels
