// ranks: 1
// GEMMs of FP8 codes against a plain loop over their values, and that nothing but the sum is rounded.
#include "nanotron/kernels/fp8/blocks.hpp"
#include "nanotron/kernels/gemm/gemm_fp8.hpp"
#include "support/orders.hpp"
#include "support/reference/gemm.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::Fp8Operand, kernels::Fp8ScaleLayout, kernels::Fp8Scaling, kernels::fp8_block, kernels::fp8_padded,
    kernels::Op;

// Random codes with a scale, and their values.
template <class E>
struct Codes {
  Codes(index_t rows_, index_t columns_, unsigned seed, float scale_)
      : rows(rows_),
        columns(columns_),
        view("codes", static_cast<std::size_t>(rows_ * fp8_padded(columns_))),
        scale(1, scale_),
        values(static_cast<std::size_t>(rows_ * columns_)) {
    std::mt19937 random(seed);
    std::vector<E> codes(view.size(), E::from_bits(0));
    for (index_t i = 0; i < rows * columns; ++i) {
      E code = E::from_bits(static_cast<std::uint8_t>(random() % 256));
      if (!std::isfinite(static_cast<float>(code))) code = E(1.0f);
      codes[static_cast<std::size_t>(i / columns * fp8_padded(columns) + i % columns)] = code;
      values[static_cast<std::size_t>(i)] = static_cast<float>(code) * scale_;
      largest = larger(largest, std::abs(values[static_cast<std::size_t>(i)]));
    }
    set_values(view, codes);
  }
  Fp8Operand<E> operand() const { return {Matrix<E>(view.data(), rows, fp8_padded(columns)), scale.data(), scaling}; }
  /// Scales of parts instead of one: powers of two, another one for each.
  void scale_parts(Fp8Scaling of) {
    scaling = of;
    const Fp8ScaleLayout layout(of, rows, columns);
    const float before = scale.host[0];
    scale = Array<float>(layout.count);
    for (index_t i = 0; i < layout.count; ++i) scale.host[i] = before * std::ldexp(1.0f, -static_cast<int>(i * 5 % 7));
    scale.push();
    for (index_t r = 0; r < rows; ++r) {
      for (index_t c = 0; c < columns; ++c) values[r * columns + c] *= scale.host[layout(r, c / fp8_block)] / before;
    }
  }
  MatrixRef<const double> matrix() const { return {values.data(), rows, columns}; }

  index_t rows, columns;
  Fp8Scaling scaling = Fp8Scaling::tensor;
  Kokkos::View<E*, Kokkos::LayoutRight, MemorySpace> view;
  Array<float> scale;
  std::vector<double> values;
  double largest = 0.0;
};

class GemmFp8 : public testing::Test {
 protected:
  // What tensor cores lose of a sum of k terms, in units of the largest: they align the terms of an instruction to the
  // largest one and keep about 14 bits (Liu et al. 2024, "DeepSeek-V3", section 3.3.2). On an H200 up to 3.2e-4 of
  // these sums of random codes was lost. An emulated GPU adds in fp64.
  static double lost_by_tensor_cores(index_t k) {
    const bool has_tensor_cores = built_for == Processor::gpu && legal_orders == 1;
    return has_tensor_cores ? static_cast<double>(k) * 0x1p-16 : 0.0;
  }
  // C begins `at` elements after an aligned address, with rows wider by `gap`. Tolerance: k roundings of the fp32 sum,
  // whose terms are of the size of the largest, and that of the result.
  // multiply(A, B, C, memory of C): C = A B^T + beta C.
  template <class A, class C, class F>
  void check(index_t m, index_t n, index_t k, double beta, index_t gap, index_t at, const F& multiply) {
    Codes<A> a(m, k, 1, 0x1p-20f);
    Codes<e4m3> b(n, k, 2, 0x1p4f);
    if (scaling_of_b_ != Fp8Scaling::tensor) a.scale_parts(Fp8Scaling::tiles), b.scale_parts(scaling_of_b_);
    auto c = Array<C>::random(m * (n + gap) + at, 3);
    const double unit = a.largest * b.largest;
    for (C& x : c.host) x = of<C>(static_cast<double>(x) * unit);
    c.push();
    std::vector<double> expected(c.host.begin() + at, c.host.end());
    kernels::reference::gemm<double>(Op::none, Op::transpose, 1.0, a.matrix(), b.matrix(), beta,
                                     {expected.data(), m, n, n + gap});
    const auto bytes =
        kernels::gemm_fp8_workspace_bytes(built_for, {m, gap == 0 && at == 0 ? n : n + 1, k, a.operand().scaling, m});
    const Kokkos::View<std::byte*, MemorySpace> memory("GEMM workspace", bytes);
    device_.set_gemm_workspace(Vector<std::byte>(memory.data(), bytes));
    const MatrixRef<C> of_c{c.data() + at, m, n, n + gap};
    multiply(a.operand(), b.operand(), of_c, c);
    device_.fence();
    c.pull();
    c.host.erase(c.host.begin(), c.host.begin() + at);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] /= unit;
    std::vector<double> actual;
    for (const C x : c.host) actual.push_back(static_cast<double>(x) / unit);
    expect_close(actual, expected,
                 4 * static_cast<double>(k + 4) * 0x1p-24 + 2 * unit_roundoff<C>() + lost_by_tensor_cores(k));
  }

  // Shapes for tensor cores, and odd ones.
  template <class A, class C, class F>
  void check_shapes(double beta, const F& multiply) {
    for (const index_t gap : {0, 16, 3}) {
      check<A, C>(64, 48, 96, beta, gap, 0, multiply);
      check<A, C>(33, 80, 50, beta, gap, 0, multiply);
      check<A, C>(17, 23, 31, beta, gap, 0, multiply);
      check<A, C>(1, 16, 1, beta, gap, 0, multiply);
      check<A, C>(40, 32, 64, beta, gap, 1, multiply);
      if (scaling_of_b_ == Fp8Scaling::tensor) continue;
      check<A, C>(136, 144, 300, beta, gap, 0, multiply);
      check<A, C>(130, 272, 256, beta, gap, 0, multiply);
    }
  }
  template <class A, class C>
  void check_shapes(double beta) {
    check_shapes<A, C>(beta, [&](const Fp8Operand<A>& a, const Fp8Operand<e4m3>& b, const MatrixRef<C>& c, Array<C>&) {
      kernels::gemm_fp8<A, C>(device_, a, b, beta, c);
    });
  }

  Timers timers_;
  Device device_{timers_};
  Fp8Scaling scaling_of_b_ = Fp8Scaling::tensor;
};

// Of tiles with blocks, as with a weight, and of tiles with tiles, as in the gradient of a weight.
TEST_F(GemmFp8, ScalesOfParts) {
  scaling_of_b_ = Fp8Scaling::blocks;
  check_shapes<e4m3, bf16>(0.0);
  scaling_of_b_ = Fp8Scaling::tiles;
  check_shapes<e4m3, float>(1.0);
}

TEST_F(GemmFp8, Forward) { check_shapes<e4m3, bf16>(0.0); }
TEST_F(GemmFp8, ForwardAddsAnotherMatrix) {
  check_shapes<e4m3, bf16>(
      1.0, [&](const Fp8Operand<e4m3>& a, const Fp8Operand<e4m3>& b, const MatrixRef<bf16>& c, Array<bf16>& memory) {
        Array<bf16> d(memory.size());
        d.host = memory.host;
        d.push();
        const index_t at = c.data - memory.data();
        for (index_t i = 0; i < c.rows; ++i)
          std::fill_n(memory.host.begin() + at + i * c.leading, c.columns, bf16(NAN));
        memory.push();
        kernels::gemm_fp8_add(device_, a, b, {d.data() + at, c.rows, c.columns, c.leading}, c);
      });
}
TEST_F(GemmFp8, InputGradient) { check_shapes<e5m2, bf16>(0.0); }
TEST_F(GemmFp8, WeightGradient) { check_shapes<e5m2, float>(1.0); }

TEST_F(GemmFp8, WhatIsNotANumberReachesTheResult) {
  Codes<e4m3> a(32, 32, 1, 1.0f);
  const Codes<e4m3> b(16, 32, 2, 1.0f);
  set_value(a.view, 5 * 32 + 7, e4m3(NAN));
  Array<bf16> c(32 * 16);
  const auto bytes = kernels::gemm_fp8_workspace_bytes(built_for, {32, 16, 32});
  const Kokkos::View<std::byte*, MemorySpace> memory("GEMM workspace", bytes);
  device_.set_gemm_workspace(Vector<std::byte>(memory.data(), bytes));
  kernels::gemm_fp8<e4m3, bf16>(device_, a.operand(), b.operand(), 0.0, MatrixRef<bf16>{c.data(), 32, 16});
  c.pull();
  for (index_t i = 0; i < c.size(); ++i) ASSERT_EQ(std::isnan(static_cast<float>(c.host[i])), i / 16 == 5) << i;
}

}  // namespace
}  // namespace nanotron::test
