// ranks: 1
// The grouped GEMMs against loops in fp64, whatever rows the experts have.
#include <numeric>

#include "nanotron/kernels/gemm/grouped/grouped_gemm.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::GroupMatrices;

struct Case {
  std::vector<std::int64_t> counts;  // rows of each expert
  index_t out, in;
  index_t spare = 0;  // rows after the last expert's
};

class Grouped {
 public:
  explicit Grouped(const Case& c)
      : c_(c), experts_(static_cast<index_t>(c.counts.size())), offsets_(experts_ + 1), stride_(c.out * c.in + 64) {
    std::partial_sum(c.counts.begin(), c.counts.end(), offsets_.host.begin() + 1);
    offsets_.push();
    rows_ = offsets_.host.back() + c.spare;
    x_ = Array<bf16>::random(rows_ * c.in, 1);
    dy_ = Array<bf16>::random(rows_ * c.out, 2);
    w_ = Array<bf16>::random(experts_ * stride_, 3);
  }

  void check_forward() {
    Array<bf16> y(rows_ * c_.out, sentinel);
    kernels::grouped_forward(device_, x_.read(rows_, c_.in), matrices<const bf16>(w_), offsets_.read(),
                             y.matrix(rows_, c_.out));
    std::vector<double> expected;
    for_each_row([&](index_t e, index_t r) {
      for (index_t n = 0; n < c_.out; ++n) {
        double sum = 0;
        for (index_t k = 0; k < c_.in; ++k) sum += x(r, k) * w(e, n, k);
        expected.push_back(sum);
      }
    });
    expect_rows(y, c_.out, expected);
  }
  void check_backward_input() {
    Array<bf16> dx(rows_ * c_.in, sentinel);
    kernels::grouped_backward_input(device_, dy_.read(rows_, c_.out), matrices<const bf16>(w_), offsets_.read(),
                                    dx.matrix(rows_, c_.in));
    std::vector<double> expected;
    for_each_row([&](index_t e, index_t r) {
      for (index_t k = 0; k < c_.in; ++k) {
        double sum = 0;
        for (index_t n = 0; n < c_.out; ++n) sum += dy(r, n) * w(e, n, k);
        expected.push_back(sum);
      }
    });
    expect_rows(dx, c_.in, expected);
  }
  // What lies between the gradients of two experts keeps its bits, as do those of experts without rows.
  void check_backward_weight() {
    auto dw = Array<float>::random(experts_ * stride_, 4);
    std::vector<double> expected(dw.host.begin(), dw.host.end());
    for_each_row([&](index_t e, index_t r) {
      for (index_t n = 0; n < c_.out; ++n) {
        for (index_t k = 0; k < c_.in; ++k) {
          expected[static_cast<std::size_t>(e * stride_ + n * c_.in + k)] += dy(r, n) * x(r, k);
        }
      }
    });
    const std::vector<float> before = dw.host;
    kernels::grouped_backward_weight(device_, dy_.read(rows_, c_.out), x_.read(rows_, c_.in), offsets_.read(),
                                     matrices<float>(dw));
    device_.fence();
    dw.pull();
    expect_close(dw.host, expected, 1e3 * unit_roundoff<float>());
    for (index_t e = 0; e < experts_; ++e) {
      const auto first = static_cast<std::size_t>(e * stride_ + (c_.counts[e] == 0 ? 0 : c_.out * c_.in));
      for (auto i = first; i < static_cast<std::size_t>((e + 1) * stride_); ++i) ASSERT_EQ(dw.host[i], before[i]);
    }
  }

 private:
  static constexpr float sentinel = -77.0f;

  template <class T, class Values>
  GroupMatrices<T> matrices(const Values& values) const {
    return {values.data(), experts_, c_.out, c_.in, stride_};
  }
  // f(expert, row) for the rows of the experts.
  template <class F>
  void for_each_row(const F& f) const {
    for (index_t e = 0; e < experts_; ++e) {
      for (index_t r = offsets_.host[e]; r < offsets_.host[e + 1]; ++r) f(e, r);
    }
  }
  double x(index_t r, index_t k) const { return static_cast<float>(x_.host[r * c_.in + k]); }
  double dy(index_t r, index_t n) const { return static_cast<float>(dy_.host[r * c_.out + n]); }
  double w(index_t e, index_t n, index_t k) const { return static_cast<float>(w_.host[e * stride_ + n * c_.in + k]); }

  // n terms of size 1, sums in fp32, rounded once to bf16; rows of no expert keep what they have.
  void expect_rows(Array<bf16>& ours, index_t columns, const std::vector<double>& expected) {
    device_.fence();
    ours.pull();
    expect_close(std::vector<bf16>(ours.host.begin(), ours.host.begin() + offsets_.host.back() * columns), expected,
                 2 * unit_roundoff<bf16>());
    for (std::size_t i = expected.size(); i < ours.host.size(); ++i) {
      ASSERT_EQ(static_cast<float>(ours.host[i]), sentinel) << i;
    }
  }

  Timers timers_;
  Device device_{timers_};
  Case c_;
  index_t experts_, rows_ = 0;
  Array<std::int64_t> offsets_;
  index_t stride_;
  Array<bf16> x_{0}, dy_{0}, w_{0};
};

using GroupedGemms = OnTensorCores<>;

TEST_F(GroupedGemms, FollowTheLoopsWhateverTheRows) {
  for (const Case& c : {Case{{5, 0, 131, 1}, 136, 72},         // odd counts, an expert without rows, partial tiles
                        Case{{0, 0, 260, 0}, 64, 128},         // all rows to one expert
                        Case{{128, 256, 64}, 128, 64},         // whole tiles
                        Case{{3, 7, 2, 0, 0, 9}, 8, 200, 37},  // few rows; rows behind them that are no expert's
                        Case{{0, 0}, 24, 16, 11},              // none
                        Case{{190}, 264, 8}}) {
    SCOPED_TRACE(testing::PrintToString(c.counts) + " " + std::to_string(c.out) + " x " + std::to_string(c.in));
    Grouped grouped(c);
    grouped.check_forward();
    grouped.check_backward_input();
    grouped.check_backward_weight();
  }
}

// Another number of rows beside a row, or of experts before it, changes no bit of its results.
TEST_F(GroupedGemms, ARowsBitsAreItsOwn) {
  const index_t in = 200, out = 72, n = 90;
  Timers timers;
  Device device(timers);
  const auto x = Array<bf16>::random(n * in, 5), w = Array<bf16>::random(2 * out * in, 6);
  const auto forward = [&](std::vector<std::int64_t> begin, index_t first_row, index_t rows, index_t first_expert) {
    Array<std::int64_t> offsets(static_cast<index_t>(begin.size()));
    offsets.host = begin;
    offsets.push();
    Array<bf16> y(rows * out);
    kernels::grouped_forward(
        device, Matrix<const bf16>(x.data() + first_row * in, rows, in),
        {w.data() + first_expert * out * in, static_cast<index_t>(begin.size()) - 1, out, in, out * in}, offsets.read(),
        y.matrix(rows, out));
    device.fence();
    y.pull();
    return y.host;
  };
  const std::vector<bf16> all = forward({0, 40, 90}, 0, 90, 0), alone = forward({0, 50}, 40, 50, 1);
  for (std::size_t i = 0; i < alone.size(); ++i) ASSERT_EQ(alone[i].bits, all[40 * out + i].bits) << i;
}

TEST_F(GroupedGemms, TakeWhatTensorCoresCanLoad) {
  const Array<bf16> w(4096);
  const GroupMatrices<const bf16> good{w.data(), 2, 24, 16, 24 * 16};
  EXPECT_TRUE(kernels::can_group(good));
  EXPECT_FALSE(kernels::can_group({w.data(), 2, 24, 12, 24 * 16}));
  EXPECT_FALSE(kernels::can_group({w.data(), 2, 23, 16, 24 * 16}));
  EXPECT_FALSE(kernels::can_group({w.data(), 2, 24, 16, 24 * 16 + 4}));
  EXPECT_FALSE(kernels::can_group({w.data() + 1, 2, 24, 16, 24 * 16}));
}

}  // namespace
}  // namespace nanotron::test
