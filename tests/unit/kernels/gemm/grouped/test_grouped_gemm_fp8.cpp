// ranks: 1
// The grouped GEMMs of FP8 codes, and the codes themselves, against loops in fp64, whatever rows the groups have.
#include <numeric>

#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/gemm/grouped/grouped_gemm_fp8.hpp"
#include "support/reference/fp8.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::Fp8Matrix, kernels::Fp8ScaleLayout, kernels::Fp8Scaling, kernels::fp8_block, kernels::fp8_padded;

struct Case {
  std::vector<std::int64_t> counts;  // rows of each group
  index_t out, in;
  index_t spare = 0;  // rows after the last group's
};

template <class T>
using Memory = Kokkos::View<T*, Kokkos::LayoutRight, MemorySpace>;
template <class T>
Memory<T> memory(index_t n) {
  return Memory<T>("codes", static_cast<std::size_t>(n));
}

// What FP8 keeps of a matrix (rows, columns), with a scale for `high` x `wide` values.
template <class E>
std::vector<double> rounded(const bf16* x, index_t rows, index_t columns, index_t high, index_t wide) {
  std::vector<double> values = kernels::reference::scales_of_parts<E>(x, rows, columns, high, wide);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = static_cast<double>(static_cast<float>(x[i])) / values[i];
    values[i] *= float(E::from_bits(kernels::reference::nearest_code<E>(value)));
  }
  return values;
}

// G: the type of gradients, which says the scaling.
template <class G>
class GroupedFp8 {
 public:
  static constexpr bool has_parts = std::is_same_v<G, e4m3>;
  static constexpr Fp8Scaling scaling = has_parts ? Fp8Scaling::tiles : Fp8Scaling::tensor;

  explicit GroupedFp8(const Case& c) : c_(c), groups_(static_cast<index_t>(c.counts.size())), begin_(groups_ + 1) {
    std::partial_sum(c.counts.begin(), c.counts.end(), begin_.host.begin() + 1);
    begin_.push();
    rows_ = begin_.host.back() + c.spare;
    x_ = Array<bf16>::random(rows_ * c.in, 1);
    dy_ = Array<bf16>::random(rows_ * c.out, 2, 1e-5);
    w_ = Array<bf16>::random(groups_ * c.out * c.in, 3, 0.02);
    for (index_t r = 0; r < rows_; ++r) {  // sizes that one scale does not reach
      const float size = std::ldexp(1.0f, -static_cast<int>(r % 5));
      for (index_t i = 0; i < c.in; ++i) x_.host[r * c.in + i] = bf16(x_.host[r * c.in + i] * size);
    }
    x_.push();
  }

  void check_forward() {
    const Weights w(*this);
    Array<bf16> y(rows_ * c_.out, sentinel);
    const auto codes = quantised<e4m3>(x_, c_.in, true);
    kernels::grouped_rows_fp8<e4m3>(device_, codes.y.by_rows(), w.by_rows(), begin_.read(), y.matrix(rows_, c_.out));
    std::vector<double> expected;
    for_each_group([&](index_t g, index_t first, index_t n) {
      const auto x = rounded<e4m3>(&x_.host[first * c_.in], n, c_.in, has_parts ? 1 : n, wide);
      const auto weight = w.values(g);
      for (index_t r = 0; r < n; ++r) {
        for (index_t i = 0; i < c_.out; ++i)
          expected.push_back(std::inner_product(&x[r * c_.in], &x[r * c_.in] + c_.in, &weight[i * c_.in], 0.0));
      }
    });
    expect_rows(y, c_.out, expected);
  }
  void check_backward_input() {
    const Weights w(*this);
    Array<bf16> dx(rows_ * c_.in, sentinel);
    const auto codes = quantised<G>(dy_, c_.out, true);
    kernels::grouped_rows_fp8<G>(device_, codes.y.by_rows(), w.by_columns(), begin_.read(), dx.matrix(rows_, c_.in));
    std::vector<double> expected;
    for_each_group([&](index_t g, index_t first, index_t n) {
      const auto dy = rounded<G>(&dy_.host[first * c_.out], n, c_.out, has_parts ? 1 : n, wide);
      const auto weight = w.values(g);
      for (index_t r = 0; r < n; ++r) {
        for (index_t k = 0; k < c_.in; ++k) {
          double sum = 0;
          for (index_t i = 0; i < c_.out; ++i) sum += dy[r * c_.out + i] * weight[i * c_.in + k];
          expected.push_back(sum);
        }
      }
    });
    expect_rows(dx, c_.in, expected);
  }
  // Gradients of groups without rows keep their bits.
  void check_backward_weight() {
    auto dw = Array<float>::random(groups_ * c_.out * c_.in, 4, 1e-4);
    std::vector<double> expected(dw.host.begin(), dw.host.end());
    const auto dy_codes = quantised<G>(dy_, c_.out, false);
    const auto x_codes = quantised<e4m3>(x_, c_.in, false);
    kernels::grouped_backward_weight_fp8<G>(device_, dy_codes.y.by_columns(), x_codes.y.by_columns(), rows_,
                                            begin_.read(), {dw.data(), groups_, c_.out, c_.in, c_.out * c_.in});
    for_each_group([&](index_t g, index_t first, index_t n) {
      const index_t high = has_parts ? fp8_block : n;
      const auto dy = rounded<G>(&dy_.host[first * c_.out], n, c_.out, high, has_parts ? 1 : c_.out);
      const auto x = rounded<e4m3>(&x_.host[first * c_.in], n, c_.in, high, has_parts ? 1 : c_.in);
      for (index_t r = 0; r < n; ++r) {
        for (index_t i = 0; i < c_.out; ++i) {
          for (index_t k = 0; k < c_.in; ++k)
            expected[static_cast<std::size_t>((g * c_.out + i) * c_.in + k)] += dy[r * c_.out + i] * x[r * c_.in + k];
        }
      }
    });
    const std::vector<float> before = dw.host;
    device_.fence();
    dw.pull();
    expect_close(dw.host, expected, 1e3 * unit_roundoff<float>());
    for (index_t g = 0; g < groups_; ++g) {
      for (index_t i = g * c_.out * c_.in; c_.counts[g] == 0 && i < (g + 1) * c_.out * c_.in; ++i)
        ASSERT_EQ(dw.host[i], before[i]);
    }
  }

 private:
  static constexpr float sentinel = -77.0f;
  static constexpr index_t wide = has_parts ? fp8_block : 1 << 20;

  template <class E>
  struct Codes {
    Memory<E> codes;
    Memory<float> scales;
    Fp8Matrix<E> y{};
  };
  // Of the rows of the groups: by rows, or by columns.
  template <class E>
  Codes<E> quantised(const Array<bf16>& x, index_t width, bool by_rows) {
    const index_t padded = by_rows ? fp8_padded(width) : kernels::fp8_group_tiles(rows_, groups_) * fp8_block;
    const index_t high = by_rows ? rows_ : width;
    Codes<E> made{memory<E>(high * padded), memory<float>(groups_ + Fp8ScaleLayout(scaling, high, padded).count)};
    Kokkos::deep_copy(made.codes, E::from_bits(0x55));  // what is not written is no zero
    (by_rows ? made.y.rows : made.y.columns) = Matrix<E>(made.codes.data(), high, padded);
    made.y.scale = made.y.column_scales = made.scales.data();
    made.y.scaling = scaling;
    const Array<float> maxima(rows_);
    kernels::quantise_groups<E>(device_, x.read(rows_, width), begin_.read(), maxima.vector(), made.y);
    device_.fence();
    return made;
  }

  struct Weights {
    explicit Weights(const GroupedFp8& of) : c(of.c_), groups(of.groups_), source(of.w_.host) {
      const Fp8Scaling kind = has_parts ? Fp8Scaling::blocks : Fp8Scaling::tensor;
      const index_t in = fp8_padded(c.in), out = fp8_padded(c.out);
      rows = memory<e4m3>(groups * c.out * in), columns = memory<e4m3>(groups * c.in * out);
      const index_t a = Fp8ScaleLayout(kind, c.out, c.in).count, b = Fp8ScaleLayout(kind, c.in, c.out).count;
      scales = memory<float>(groups * a), column_scales = memory<float>(groups * b);
      Timers timers;
      Device device(timers);
      const Array<float> maxima(c.out);
      for (index_t g = 0; g < groups; ++g) {
        const Matrix<const bf16> w(of.w_.data() + g * c.out * c.in, c.out, c.in);
        const Fp8Matrix<e4m3> y{Matrix<e4m3>(rows.data() + g * c.out * in, c.out, in),
                                Matrix<e4m3>(columns.data() + g * c.in * out, c.in, out), scales.data() + g * a,
                                column_scales.data() + g * b, kind};
        if (has_parts) {
          kernels::quantise_parts(device, w, y);
        } else {
          kernels::row_maxima<bf16>(device, w, maxima.vector());
          kernels::quantise<e4m3>(device, w, maxima.read(), y);
        }
      }
      device.fence();
    }
    kernels::Fp8GroupWeights by_rows() const { return of(rows, c.out, c.in, scales); }
    kernels::Fp8GroupWeights by_columns() const { return of(columns, c.in, c.out, has_parts ? column_scales : scales); }
    std::vector<double> values(index_t g) const {
      const index_t high = has_parts ? fp8_block : c.out, across = has_parts ? fp8_block : c.in;
      return rounded<e4m3>(&source[static_cast<std::size_t>(g * c.out * c.in)], c.out, c.in, high, across);
    }

    Case c;
    index_t groups;
    std::vector<bf16> source;
    Memory<e4m3> rows, columns;
    Memory<float> scales, column_scales;

   private:
    kernels::Fp8GroupWeights of(const Memory<e4m3>& codes, index_t high, index_t k, const Memory<float>& s) const {
      return {Matrix<const e4m3>(codes.data(), groups * high, fp8_padded(k)), s.data(), groups,
              has_parts ? Fp8Scaling::blocks : Fp8Scaling::tensor};
    }
  };

  template <class F>
  void for_each_group(const F& f) const {
    for (index_t g = 0; g < groups_; ++g) {
      if (c_.counts[g] > 0) f(g, begin_.host[g], c_.counts[g]);
    }
  }
  void expect_rows(Array<bf16>& ours, index_t columns, const std::vector<double>& expected) {
    device_.fence();
    ours.pull();
    ASSERT_EQ(expected.size(), static_cast<std::size_t>(begin_.host.back() * columns));
    expect_close(std::vector<bf16>(ours.host.begin(), ours.host.begin() + begin_.host.back() * columns), expected,
                 2 * unit_roundoff<bf16>());
    for (std::size_t i = expected.size(); i < ours.host.size(); ++i) {
      ASSERT_EQ(static_cast<float>(ours.host[i]), sentinel) << i;
    }
  }

  Timers timers_;
  Device device_{timers_};
  Case c_;
  index_t groups_, rows_ = 0;
  Array<std::int64_t> begin_;
  Array<bf16> x_{0}, dy_{0}, w_{0};
};

template <class G>
class GroupedGemmsFp8 : public OnTensorCores<> {};
using Gradients = testing::Types<e4m3, e5m2>;
TYPED_TEST_SUITE(GroupedGemmsFp8, Gradients);

TYPED_TEST(GroupedGemmsFp8, FollowTheLoopsWhateverTheRows) {
  for (const Case& c : {Case{{5, 0, 131, 1}, 136, 72},         // odd counts, a group without rows, partial tiles
                        Case{{0, 0, 260, 0}, 64, 300},         // all rows to one group
                        Case{{128, 256, 64}, 128, 64},         // whole tiles
                        Case{{3, 7, 2, 0, 0, 9}, 8, 200, 37},  // few rows; rows behind them that are no group's
                        Case{{0, 0}, 24, 16, 11},              // none
                        Case{{190}, 264, 8}}) {
    SCOPED_TRACE(testing::PrintToString(c.counts) + " " + std::to_string(c.out) + " x " + std::to_string(c.in));
    GroupedFp8<TypeParam> grouped(c);
    grouped.check_forward();
    grouped.check_backward_input();
    grouped.check_backward_weight();
  }
}

}  // namespace
}  // namespace nanotron::test
