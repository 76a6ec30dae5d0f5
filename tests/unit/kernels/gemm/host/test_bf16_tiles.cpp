// ranks: 1
// Tiles with the bf16 instructions of AVX-512, also where the program itself uses AMX; with BFMMLA on Arm.
#define NANOTRON_WITHOUT_AMX
#include <numeric>

#include "kernels/gemm/bf16_tiles.hpp"
#include "kernels/gemm/gemm_tiles.hpp"
#include "support/reference/gemm.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

#ifdef NANOTRON_HAS_BF16_TILES

using kernels::Op;
namespace tiles = kernels::bf16_tiles;

// One block of sums of k terms, op_a and op_b as they lie in memory, with and without what was there before.
void check_block(Op op_a, Op op_b, index_t k, bool accumulate) {
  SCOPED_TRACE(testing::Message() << "k = " << k << ", accumulate " << accumulate);
  constexpr index_t extent = 2 * tiles::tile_extent, gap = 3;
  const auto stored = [&](Op op, Op rows_are_depth, unsigned seed) {
    const index_t rows = op == rows_are_depth ? k : extent, columns = op == rows_are_depth ? extent : k;
    return std::tuple(Array<bf16>::random(rows * (columns + gap), seed), rows, columns);
  };
  const auto [a, rows_a, columns_a] = stored(op_a, Op::transpose, 1);
  const auto [b, rows_b, columns_b] = stored(op_b, Op::none, 2);
  const auto before = Array<float>::random(extent * (extent + gap), 3);
  std::vector<double> expected(before.host.begin(), before.host.end());
  kernels::reference::gemm<bf16>(op_a, op_b, 1.0, {a.host.data(), rows_a, columns_a, columns_a + gap},
                                 {b.host.data(), rows_b, columns_b, columns_b + gap}, accumulate ? 1.0 : 0.0,
                                 {expected.data(), extent, extent, extent + gap});
  const index_t elements = tiles::packed_elements(extent, k), strip = elements / 2;
  std::vector<bf16> packed_a(static_cast<std::size_t>(elements)), packed_b(packed_a);
  if (op_a == Op::none) {
    tiles::pack_along_depth<false>(a.host.data(), columns_a + gap, extent, k, packed_a.data());
  } else {
    tiles::pack_across_depth<true>(a.host.data(), columns_a + gap, extent, k, packed_a.data());
  }
  if (op_b == Op::none) {
    tiles::pack_across_depth<false>(b.host.data(), columns_b + gap, extent, k, packed_b.data());
  } else {
    tiles::pack_along_depth<true>(b.host.data(), columns_b + gap, extent, k, packed_b.data());
  }
  const index_t count = tiles::tiles(k, tiles::tile_depth);
  for (const index_t last_depth : {tiles::tile_depth, k - (count - 1) * tiles::tile_depth}) {
    std::vector<float> c = before.host;
    tiles::multiply_block(packed_a.data(), strip, packed_b.data(), strip, count, c.data(), extent + gap, accumulate,
                          {extent, last_depth});
    expect_close(c, expected, 4 * static_cast<double>(k + 4) * unit_roundoff<float>());
  }
}

TEST(Bf16Tiles, ABlockOfSums) {
  for (const Op op_a : {Op::none, Op::transpose}) {
    for (const Op op_b : {Op::none, Op::transpose}) {
      for (const index_t k : {1, 3, 5, 31, 32, 77, 512}) {
        for (const bool accumulate : {false, true}) check_block(op_a, op_b, k, accumulate);
      }
    }
  }
}

std::vector<float> lanes(const tiles::Floats& x) {
  std::vector<float> to(16);
  tiles::store(to.data(), tiles::first_lanes(16), x);
  return to;
}
std::vector<float> sixteen(auto&& value) {
  std::vector<float> to;
  for (int i = 0; i < 16; ++i) to.push_back(value(i));
  return to;
}

// The same functions on x86 and Arm (tiles/lanes_*.hpp): nothing is read or written beyond the first n.
TEST(Bf16Tiles, PartsOfVectors) {
  const std::vector<float> x = sixteen([](int i) { return 0.37f * static_cast<float>(i) - 2.5f; });
  std::vector<bf16> rounded;
  for (const float value : x) rounded.emplace_back(value);
  for (index_t n = -2; n <= 18; ++n) {
    const auto first = tiles::first_lanes(n);
    const auto expected = [&](auto&& inside, float outside) {
      return sixteen([&](int i) { return i < n ? static_cast<float>(inside(static_cast<std::size_t>(i))) : outside; });
    };
    EXPECT_EQ(lanes(tiles::load(x.data(), first)), expected([&](std::size_t i) { return x[i]; }, 0.0f));
    EXPECT_EQ(lanes(tiles::load_widened(rounded.data(), first)),
              expected([&](std::size_t i) { return rounded[i]; }, 0.0f));
    std::vector<float> stored(16, -7.0f);
    tiles::store(stored.data(), first, tiles::load(x.data()));
    EXPECT_EQ(stored, expected([&](std::size_t i) { return x[i]; }, -7.0f));
    std::vector<bf16> narrow(16, bf16(-7.0f));
    tiles::store_rounded(narrow.data(), first, tiles::load(x.data()));
    EXPECT_EQ(std::vector<float>(narrow.begin(), narrow.end()),
              expected([&](std::size_t i) { return rounded[i]; }, -7.0f));
    for (index_t begin = -3; begin <= 17; ++begin) {
      const auto mask = tiles::lanes_between(begin, n);
      const auto inside = [&](int i) { return i >= begin && i < n; };
      EXPECT_EQ(lanes(tiles::kept(mask, tiles::all(2.0f))), sixteen([&](int i) { return inside(i) ? 2.0f : 0.0f; }));
      EXPECT_EQ(tiles::any(mask), std::max<index_t>(begin, 0) < std::min<index_t>(n, 16));
    }
  }
}

TEST(Bf16Tiles, ArithmeticOfVectors) {
  const std::vector<float> x = sixteen([](int i) { return 0.37f * static_cast<float>(i) - 2.5f; });
  const tiles::Floats v = tiles::load(x.data()), two = tiles::all(2.0f), one = tiles::all(1.0f);
  const auto of_each = [&](auto&& f) { return sixteen([&](int i) { return f(x[static_cast<std::size_t>(i)]); }); };
  EXPECT_EQ(lanes(tiles::multiply_add(v, two, one)), of_each([](float y) { return std::fma(y, 2.0f, 1.0f); }));
  EXPECT_EQ(lanes(tiles::multiply_subtract(v, two, one)), of_each([](float y) { return std::fma(y, 2.0f, -1.0f); }));
  EXPECT_EQ(lanes(tiles::subtract_product(v, two, one)), of_each([](float y) { return std::fma(-y, 2.0f, 1.0f); }));
  EXPECT_EQ(lanes(tiles::nearest(v)), of_each([](float y) { return std::nearbyint(y); }));
  EXPECT_EQ(lanes(tiles::larger(tiles::lanes_between(2, 9), tiles::all(-1.0f), v)),
            sixteen([&](int i) { return i >= 2 && i < 9 ? std::max(-1.0f, x[static_cast<std::size_t>(i)]) : -1.0f; }));
  EXPECT_EQ(tiles::largest(v), x.back());
  EXPECT_NEAR(tiles::sum(v), std::accumulate(x.begin(), x.end(), 0.0), 1e-5);
  for (const int power : {-400, -252, -127, -126, -3, 0, 5, 127, 128, 300}) {
    EXPECT_EQ(lanes(tiles::times_power(tiles::all(1.25f), tiles::all(static_cast<float>(power))))[3],
              std::ldexp(1.25f, power))
        << power;
  }
  std::vector<std::int32_t> begin(16), end(16);
  for (int i = 0; i < 16; ++i) begin[static_cast<std::size_t>(i)] = i % 5, end[static_cast<std::size_t>(i)] = 3 + i % 7;
  for (int number = -1; number < 12; ++number) {
    EXPECT_EQ(lanes(tiles::kept(tiles::lanes_with(number, begin.data(), end.data()), one)),
              sixteen([&](int i) { return i % 5 <= number && number < 3 + i % 7 ? 1.0f : 0.0f; }));
  }
}

// More workers than this process has threads take turns.
TEST(Bf16Tiles, TheSameBitsForAnyNumberOfWorkers) {
  if (!tiles::available()) GTEST_SKIP() << "the system does not permit them";
  Timers timers;
  Device device(timers);
  for (const auto& [m, n, k] : {std::array<index_t, 3>{512, 96, 512}, {77, 130, 31}, {1000, 33, 700}, {300, 1, 9000}}) {
    SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k);
    const auto a = Array<bf16>::random(m * k, 1), b = Array<bf16>::random(k * n, 2);
    const kernels::detail::GemmProblem problem{.m = m, .n = n, .k = k, .leading_a = k, .leading_b = n, .leading_c = n};
    std::vector<double> expected(static_cast<std::size_t>(m * n), 0.0);
    kernels::reference::gemm<bf16>(Op::none, Op::none, 1.0, {a.host.data(), m, k, k}, {b.host.data(), k, n, n}, 0.0,
                                   {expected.data(), m, n, n});
    std::vector<float> first;
    for (index_t workers = 1; workers <= 5; ++workers) {
      std::vector<std::byte> workspace(tiles::workspace_bytes(n, k, workers) + 64);
      void* aligned = workspace.data();
      std::size_t room = workspace.size();
      std::align(64, room - 64, aligned, room);
      std::vector<float> c(expected.size(), -1.0f);
      tiles::multiply<float>(device, problem, a.host.data(), b.host.data(), c.data(), static_cast<std::byte*>(aligned),
                             workers);
      if (workers == 1) {
        first = c;
        expect_close(c, expected, 4 * static_cast<double>(k + 4) * unit_roundoff<float>());
      }
      EXPECT_EQ(c, first) << workers << " workers";
    }
  }
}

#else

TEST(Bf16Tiles, ABlockOfSums) { GTEST_SKIP() << "not compiled for a processor with bf16 instructions"; }

#endif

}  // namespace
}  // namespace nanotron::test
