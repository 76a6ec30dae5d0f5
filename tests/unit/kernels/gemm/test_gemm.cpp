// ranks: 1
#include "nanotron/kernels/gemm/gemm.hpp"
#include "support/reference/gemm.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::Op;

template <class T>
class Gemm : public KernelTest<T> {
 protected:
  // One product with leading dimensions wider than the rows by `gap`, against the reference.
  // Tolerance: with inputs of order 1 partial sums grow as sqrt(k), and their k roundings add up
  // like a walk to about k roundings of the accumulator; 4 times that, plus the rounding of the
  // result.
  template <class C>
  void check(Op op_a, Op op_b, index_t m, index_t n, index_t k, double alpha, double beta, index_t gap) {
    check_product<C>(
        op_a, op_b, m, n, k, alpha, beta, gap,
        [&](const MatrixRef<const T>& a, const MatrixRef<const T>& b, Array<C>& c) {
          kernels::gemm<T, C>(this->device_, op_a, op_b, alpha, a, b, beta, MatrixRef<C>{c.data(), m, n, n + gap});
        });
  }
  // gemm_add of another D than C, which is not read, and in place.
  void check_add(Op op_a, Op op_b, index_t m, index_t n, index_t k, index_t gap) {
    using Operand = MatrixRef<const T>;
    check_product<T>(op_a, op_b, m, n, k, 1.0, 1.0, gap, [&](const Operand& a, const Operand& b, Array<T>& c) {
      Array<T> d(c.size());
      d.host = c.host;
      d.push();
      for (index_t i = 0; i < m; ++i) std::fill_n(c.host.begin() + i * (n + gap), n, T(NAN));
      c.push();
      kernels::gemm_add<T>(this->device_, op_a, op_b, a, b, {d.data(), m, n, n + gap}, {c.data(), m, n, n + gap});
    });
    check_product<T>(op_a, op_b, m, n, k, 1.0, 1.0, gap, [&](const Operand& a, const Operand& b, Array<T>& c) {
      kernels::gemm_add<T>(this->device_, op_a, op_b, a, b, {c.data(), m, n, n + gap}, {c.data(), m, n, n + gap});
    });
  }
  // multiply(A, B, C): C = alpha op(A) op(B) + beta C.
  template <class C, class F>
  void check_product(Op op_a, Op op_b, index_t m, index_t n, index_t k, double alpha, double beta, index_t gap,
                     const F& multiply) {
    const index_t rows_a = op_a == Op::none ? m : k, columns_a = op_a == Op::none ? k : m;
    const index_t rows_b = op_b == Op::none ? k : n, columns_b = op_b == Op::none ? n : k;
    const auto a = Array<T>::random(rows_a * (columns_a + gap), 1);
    const auto b = Array<T>::random(rows_b * (columns_b + gap), 2);
    auto c = Array<C>::random(m * (n + gap), 3);
    std::vector<double> expected(c.host.begin(), c.host.end());
    kernels::reference::gemm<T>(op_a, op_b, alpha, {a.host.data(), rows_a, columns_a, columns_a + gap},
                                {b.host.data(), rows_b, columns_b, columns_b + gap}, beta,
                                {expected.data(), m, n, n + gap});
    multiply({a.data(), rows_a, columns_a, columns_a + gap}, {b.data(), rows_b, columns_b, columns_b + gap}, c);
    this->device_.fence();
    c.pull();
    const double sum = 4 * static_cast<double>(k + 4) * unit_roundoff<master_t<T>>();
    expect_close(c.host, expected, sum + 2 * unit_roundoff<C>());
  }

  template <class C>
  void check_all_forms() {
    for (const Op op_a : {Op::none, Op::transpose}) {
      for (const Op op_b : {Op::none, Op::transpose}) {
        SCOPED_TRACE(std::string(op_a == Op::none ? "A" : "A^T") + (op_b == Op::none ? " B" : " B^T"));
        check<C>(op_a, op_b, 128, 96, 64, 1.0, 0.0, 0);
        check<C>(op_a, op_b, 70, 33, 129, 1.0, 1.0, 0);
        check<C>(op_a, op_b, 67, 130, 31, 0.5, 1.0, 5);
        check<C>(op_a, op_b, 300, 17, 257, 1.0, 0.0, 3);
        check<C>(op_a, op_b, 1, 40, 50, 1.0, 0.0, 0);
        check<C>(op_a, op_b, 5, 1, 1, 2.0, 1.0, 0);
      }
    }
  }

  void take_workspace(std::size_t bytes) {
    memory_ = Kokkos::View<std::byte*, MemorySpace>("product workspace", bytes);
    this->device_.set_gemm_workspace(Vector<std::byte>(memory_.data(), memory_.extent(0)));
  }
  Kokkos::View<std::byte*, MemorySpace> memory_;
};
TYPED_TEST_SUITE(Gemm, ScalarTypes);

TYPED_TEST(Gemm, EveryFormWithoutWorkspace) { this->template check_all_forms<TypeParam>(); }

TYPED_TEST(Gemm, EveryFormWithWorkspace) {
  this->take_workspace(kernels::gemm_workspace_bytes<TypeParam>(GemmMode::library, built_for, 300, 130, 257));
  this->template check_all_forms<TypeParam>();
}

TYPED_TEST(Gemm, IntoMasterType) {
  this->take_workspace(kernels::gemm_workspace_bytes<TypeParam>(GemmMode::library, built_for, 300, 130, 257));
  this->template check_all_forms<master_t<TypeParam>>();
}

TYPED_TEST(Gemm, Adds) {
  this->take_workspace(kernels::gemm_workspace_bytes<TypeParam>(GemmMode::library, built_for, 300, 130, 257));
  for (const Op op_a : {Op::none, Op::transpose}) {
    for (const Op op_b : {Op::none, Op::transpose}) {
      this->check_add(op_a, op_b, 128, 96, 64, 0);
      this->check_add(op_a, op_b, 67, 130, 31, 5);
      this->check_add(op_a, op_b, 4, 9, 0, 1);
    }
  }
}

TYPED_TEST(Gemm, WithoutTermsScalesTheResult) {
  using T = TypeParam;
  Array<T> c(6, 2.0);
  kernels::gemm<T, T>(this->device_, Op::none, Op::none, 1.0, {nullptr, 2, 0, 1}, {nullptr, 0, 3, 3}, 0.5,
                      MatrixRef<T>{c.data(), 2, 3});
  c.pull();
  expect_close(c.host, std::vector<double>(6, 1.0), 0.0);
}

// First of an aligned one, then of one that begins an element later: the same shape.
TYPED_TEST(Gemm, OperandsAtAnyElement) {
  using T = TypeParam;
  const index_t m = 40, n = 24, k = 32;
  const auto a = Array<T>::random(m * k + 1, 1);
  const auto b = Array<T>::random(k * n + 1, 2);
  for (const index_t at : {0, 1}) {
    Array<T> c(m * n + 1);
    std::vector<double> expected(static_cast<std::size_t>(m * n));
    kernels::reference::gemm<T>(Op::none, Op::none, 1.0, {a.host.data() + at, m, k}, {b.host.data() + at, k, n}, 0.0,
                                {expected.data(), m, n});
    kernels::gemm<T, T>(this->device_, Op::none, Op::none, 1.0, {a.data() + at, m, k}, {b.data() + at, k, n}, 0.0,
                        MatrixRef<T>{c.data() + at, m, n});
    this->device_.fence();
    c.pull();
    c.host.erase(at == 0 ? c.host.end() - 1 : c.host.begin());
    expect_close(c.host, expected, 150 * unit_roundoff<master_t<T>>() + 2 * unit_roundoff<T>());
  }
}

// Of operands at multiples of 16 bytes, and of an element.
TYPED_TEST(Gemm, BatchedIsManySingleOnes) {
  using T = TypeParam;
  const index_t m = 40, n = 24, count = 3;
  const auto address = [](const T* p) { return reinterpret_cast<std::uintptr_t>(p); };
  for (const index_t k : {33, 34, 40}) {
    const auto a = Array<T>::random(count * m * k + 1, 1);
    const auto b = Array<T>::random(count * k * n + 1, 2);
    for (const index_t at : {0, 1}) {
      Array<T> c(count * m * n + 1);
      Array<std::uintptr_t> as(count), bs(count), cs(count);  // pointers, as numbers
      std::vector<double> expected(static_cast<std::size_t>(count * m * n));
      for (index_t i = 0; i < count; ++i) {
        as.host[i] = address(a.data() + at + i * m * k);
        bs.host[i] = address(b.data() + at + i * k * n);
        cs.host[i] = address(c.data() + at + i * m * n);
        kernels::reference::gemm<T>(Op::none, Op::none, 1.0, {a.host.data() + at + i * m * k, m, k},
                                    {b.host.data() + at + i * k * n, k, n}, 0.0, {expected.data() + i * m * n, m, n});
      }
      as.push(), bs.push(), cs.push();
      const kernels::BatchedShape shape{.m = m,
                                        .n = n,
                                        .k = k,
                                        .leading_a = k,
                                        .leading_b = n,
                                        .leading_c = n,
                                        .alignment = at == 0 ? 16 : sizeof(T)};
      kernels::gemm_batched<T, T>(this->device_, shape, reinterpret_cast<const T* const*>(as.data()),
                                  reinterpret_cast<const T* const*>(bs.data()), reinterpret_cast<T* const*>(cs.data()),
                                  count);
      this->device_.fence();
      c.pull();
      c.host.erase(at == 0 ? c.host.end() - 1 : c.host.begin());
      expect_close(c.host, expected, 150 * unit_roundoff<master_t<T>>() + 2 * unit_roundoff<T>());
    }
  }
}

}  // namespace
}  // namespace nanotron::test
