// ranks: 1
// Algorithms of GEMMs that were measured, written, read and used again.
#include "nanotron/kernels/gemm/gemm_algorithms.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "unit/kernels/kernel_test.hpp"

#ifdef NANOTRON_EMULATED_GPU
#include "emulation/gemms.hpp"
#endif

namespace nanotron::test {
namespace {

using kernels::Op;

class GemmAlgorithms : public testing::Test {
 protected:
  // C (m, n) of m x n x 32 in bf16.
  std::vector<bf16> product(Device& device, index_t m, index_t n) {
    const index_t k = 32;
    const auto a = Array<bf16>::random(m * k, 1), b = Array<bf16>::random(n * k, 2);
    Array<bf16> c(m * n);
    kernels::gemm<bf16, bf16>(device, Op::none, Op::transpose, 1.0, {a.data(), m, k}, {b.data(), n, k}, 0.0,
                              MatrixRef<bf16>{c.data(), m, n});
    device.fence();
    c.pull();
    return c.host;
  }
  // Another algorithm may add in another order.
  static void expect_near(const std::vector<bf16>& x, const std::vector<bf16>& y) {
    const std::vector<double> expected(y.begin(), y.end());
    expect_close(x, expected, 150 * 0x1p-24 + 2 * unit_roundoff<bf16>());
  }
  static bool same(const std::vector<bf16>& x, const std::vector<bf16>& y) {
    return std::ranges::equal(x, y, {}, &bf16::bits, &bf16::bits);
  }
  Timers timers_;
};

TEST_F(GemmAlgorithms, AreUsedAgain) {
  Device measuring(timers_), plain(timers_), given(timers_);
  kernels::measure_gemm_algorithms(measuring);
  const std::vector<bf16> measured = product(measuring, 48, 64);
  product(measuring, 16, 80);
  product(measuring, 48, 64);
  expect_near(product(plain, 48, 64), measured);

  const std::string text = kernels::text_of(kernels::measured_gemm_algorithms(measuring));
  const kernels::GemmAlgorithms read = kernels::read_gemm_algorithms(text, "file");
  EXPECT_EQ(read.of.size(), 2u);
  EXPECT_EQ(kernels::text_of(read), text);
  kernels::use_gemm_algorithms(given, read, "file");
  EXPECT_TRUE(same(product(given, 48, 64), measured));
  product(given, 16, 80);
  product(given, 32, 32);
  EXPECT_EQ(kernels::gemm_algorithm_counts(given).given, 2);
  EXPECT_EQ(kernels::gemm_algorithm_counts(given).by_heuristic, 1);
}

#ifdef NANOTRON_WITH_CUDA
TEST_F(GemmAlgorithms, AreOfTheMultiprocessorsThatOthersLeave) {
  Device all(timers_), some(timers_);
  const auto measured_name = [&](Device& device) {
    kernels::measure_gemm_algorithms(device);
    product(device, 48, 64);
    return kernels::measured_gemm_algorithms(device).of.begin()->first;
  };
  kernels::leave_multiprocessors(some, 8);
  const std::string name = measured_name(all);
  EXPECT_EQ(measured_name(some).find(name + " multiprocessors "), 0u);
#ifdef NANOTRON_EMULATED_GPU
  EXPECT_EQ(emulation::multiprocessors_of_last_gemm, emulation::multiprocessors - 8);
#endif
}
#endif

TEST_F(GemmAlgorithms, OfAnotherGpuAreRefused) {
  Device device(timers_);
  EXPECT_THROW(kernels::use_gemm_algorithms(device, {.library = "cuBLASLt 1, another", .of = {}}, "file"), Error);
}

// What the library refuses leaves the heuristic's: the emulated ones refuse zeros.
TEST_F(GemmAlgorithms, UnknownOnesAreNotUsed) {
  Device measuring(timers_), device(timers_);
  kernels::measure_gemm_algorithms(measuring);
  const std::vector<bf16> expected = product(measuring, 48, 64);
  kernels::GemmAlgorithms read = kernels::measured_gemm_algorithms(measuring);
  for (auto& [gemm, algorithm] : read.of) std::ranges::fill(algorithm, '0');
  kernels::use_gemm_algorithms(device, read, "file");
  expect_near(product(device, 48, 64), expected);
#if defined(NANOTRON_EMULATED_GPU)
  EXPECT_EQ(kernels::gemm_algorithm_counts(device).by_heuristic, 1);
#endif
}

}  // namespace
}  // namespace nanotron::test
