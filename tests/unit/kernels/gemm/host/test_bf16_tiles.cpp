// ranks: 1
// Tiles with the bf16 instructions of AVX-512, also where the program itself uses AMX.
#define NANOTRON_WITHOUT_AMX
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
  std::vector<float> c = before.host;
  tiles::multiply_block(packed_a.data(), strip, packed_b.data(), strip, tiles::tiles(k, tiles::tile_depth), c.data(),
                        extent + gap, accumulate);
  expect_close(c, expected, 4 * static_cast<double>(k + 4) * unit_roundoff<float>());
}

TEST(Bf16Tiles, ABlockOfSums) {
  for (const Op op_a : {Op::none, Op::transpose}) {
    for (const Op op_b : {Op::none, Op::transpose}) {
      for (const index_t k : {1, 31, 32, 77, 512}) {
        for (const bool accumulate : {false, true}) check_block(op_a, op_b, k, accumulate);
      }
    }
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

TEST(Bf16Tiles, ABlockOfSums) { GTEST_SKIP() << "not compiled for a processor with AVX512_BF16"; }

#endif

}  // namespace
}  // namespace nanotron::test
