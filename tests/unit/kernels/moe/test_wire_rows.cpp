// ranks: 1
// Rows in the form in which they travel between ranks, against plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nanotron/base/fp8.hpp"
#include "nanotron/base/random.hpp"
#include "nanotron/kernels/moe/wire_rows.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::kernels {
namespace {

using deck::ExpertRowType;

constexpr index_t rows = 5;

// Values of very different blocks.
template <class T>
std::vector<T> values(index_t columns) {
  std::vector<T> x(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double u = 2.0 * uniform(3, stream_id("rows"), i) - 1.0;
    x[i] = static_cast<T>(static_cast<float>(u * std::exp2(static_cast<double>(i / wire_block % 7) * 5.0 - 15.0)));
  }
  return x;
}

// The value that comes out, by the definition.
float through(ExpertRowType type, const std::vector<float>& row, std::size_t c) {
  if (type == ExpertRowType::bf16) return static_cast<float>(static_cast<bf16>(row[c]));
  const std::size_t begin = c / wire_block * wire_block, end = std::min<std::size_t>(begin + wire_block, row.size());
  float amax = 0.0f;
  for (std::size_t i = begin; i < end; ++i) amax = test::larger(amax, std::abs(row[i]));
  int e = 0;
  if (amax > 0.0f) {
    e = 126;
    while (std::ldexp(amax, e) > 448.0f) --e;
  }
  return std::ldexp(static_cast<float>(e4m3(std::ldexp(row[c], e))), -e);
}

template <class T>
std::vector<T> there_and_back(Device& device, ExpertRowType type, const std::vector<T>& x, index_t columns) {
  const index_t n = static_cast<index_t>(x.size()) / columns, width = wire_words(type, columns);
  test::Array<T> from(n * columns), to(n * columns);
  const Kokkos::View<std::uint64_t*, Kokkos::LayoutRight, MemorySpace> words("words",
                                                                             static_cast<std::size_t>(n * width));
  from.host = x;
  from.push();
  pack_rows<T>(device, type, Matrix<const T>(from.data(), n, columns), Matrix<std::uint64_t>(words.data(), n, width));
  unpack_rows<T>(device, type, Matrix<const std::uint64_t>(words.data(), n, width), Matrix<T>(to.data(), n, columns));
  device.fence();
  to.pull();
  return to.host;
}

class WireRows : public testing::TestWithParam<ExpertRowType> {
 protected:
  Timers timers_;
  Device device_{timers_};

  template <class T>
  void expect_as_defined() {
    for (const index_t columns : {1, 7, 64, 128, 129, 300, 512}) {
      const std::vector<T> x = values<T>(columns), y = there_and_back<T>(device_, GetParam(), x, columns);
      std::size_t bad = 0;
      double worst = 0.0;
      for (std::size_t r = 0; r < rows; ++r) {
        std::vector<float> row;
        for (index_t c = 0; c < columns; ++c)
          row.push_back(static_cast<float>(x[r * static_cast<std::size_t>(columns) + static_cast<std::size_t>(c)]));
        float amax = 0.0f;
        for (const float value : row) amax = test::larger(amax, std::abs(value));
        for (std::size_t c = 0; c < row.size(); ++c) {
          const auto out = static_cast<float>(y[r * row.size() + c]);
          bad += out != static_cast<float>(static_cast<T>(through(GetParam(), row, c)));
          worst = test::larger(worst, static_cast<double>(std::abs(out - row[c]) / amax));
        }
      }
      EXPECT_EQ(bad, 0u) << columns;
      // Half a unit of the last of 4 bits of a significand, or of 8.
      EXPECT_LE(worst, GetParam() == ExpertRowType::fp8 ? 1.0 / 16 : 1.0 / 256) << columns;
    }
  }
};

TEST_P(WireRows, EachValueIsRoundedAsDefined) {
  expect_as_defined<float>();
  expect_as_defined<double>();
  expect_as_defined<bf16>();
}

TEST_P(WireRows, ZerosStayAndWhatIsNotFiniteIsSeen) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x(2 * wire_block, 0.0f);
  EXPECT_EQ(there_and_back<float>(device_, GetParam(), x, wire_block), x);
  x[3] = nan, x[wire_block] = inf, x[wire_block + 1] = 1.0f;
  const std::vector<float> y = there_and_back<float>(device_, GetParam(), x, 2 * wire_block);
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_FALSE(std::isfinite(y[wire_block]));
  EXPECT_EQ(y[4], 0.0f);
}

// Packed rows are taken from places, and go back to them.
TEST_P(WireRows, ComeFromPlacesAndGoThere) {
  const index_t columns = 200, width = wire_words(GetParam(), columns);
  test::Array<float> from(rows * columns), to(rows * columns);
  from.host = values<float>(columns);
  from.push();
  test::Array<std::int64_t> places(rows);
  places.host = {3, 0, 4, 1, 2};
  places.push();
  const Kokkos::View<std::uint64_t*, Kokkos::LayoutRight, MemorySpace> memory("words",
                                                                              static_cast<std::size_t>(rows * width));
  const Matrix<std::uint64_t> words(memory.data(), rows, width);
  pack_rows<float>(device_, GetParam(), from.read(rows, columns), words, places.read());
  unpack_rows<float>(device_, GetParam(), words, to.matrix(rows, columns));
  device_.fence();
  to.pull();
  const std::vector<float> in_order = there_and_back<float>(device_, GetParam(), from.host, columns);
  for (std::size_t r = 0; r < rows; ++r) {
    const auto begin = in_order.begin() + places.host[r] * columns;
    EXPECT_TRUE(std::equal(begin, begin + columns, to.host.begin() + static_cast<index_t>(r) * columns)) << r;
  }
  unpack_rows<float>(device_, GetParam(), words, to.matrix(rows, columns), places.read());
  device_.fence();
  to.pull();
  EXPECT_EQ(to.host, in_order);
}

TEST(WireWords, AreAQuarterOfFloats) {
  EXPECT_EQ(wire_words(ExpertRowType::bf16, 4096), 1024);
  EXPECT_EQ(wire_words(ExpertRowType::fp8, 4096), 512 + 16);
  EXPECT_EQ(wire_words(ExpertRowType::fp8, 129), 17 + 1);
}

INSTANTIATE_TEST_SUITE_P(Types, WireRows, testing::Values(ExpertRowType::bf16, ExpertRowType::fp8),
                         [](const auto& info) { return info.param == ExpertRowType::fp8 ? "fp8" : "bf16"; });

}  // namespace
}  // namespace nanotron::kernels
