// ranks: 1
// Layers of all experts: the grouped GEMMs give what those of the library give, whatever rows the experts have.
#include <numeric>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/moe/expert_rows.hpp"
#include "nanotron/nn/moe/expert_linear.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using Counts = std::vector<std::int64_t>;

// A layer of experts with these rows, weights and gradients `gap` elements apart, and `spare` rows after the last.
class Layer {
 public:
  static constexpr index_t out = 40, in = 24, gap = 64, spare = 5;

  explicit Layer(const Counts& counts)
      : experts_(static_cast<index_t>(counts.size())),
        w_(Array<bf16>::random(experts_ * (out * in + gap), 1)),
        dw_(Array<float>::random(experts_ * (out * in + gap), 2)),
        counts_(experts_),
        offsets_(experts_ + 1, -1.0) {
    counts_.host = counts;
    counts_.push();
    kernels::expert_offsets(device_, Matrix<const std::int64_t>(counts_.data(), 1, experts_), offsets_.vector());
    device_.fence();
    offsets_.pull();
    rows_.begin = offsets_.host;
    rows_.offsets = offsets_.vector();
    rows_.received_rows = rows_.begin.back() + spare;
    x_ = Array<bf16>::random(rows_.received_rows * in, 3);
    dy_ = Array<bf16>::random(rows_.received_rows * out, 4);
  }

  std::unique_ptr<const nn::ExpertLinear<bf16>> make(deck::ExpertGemms gemms, index_t uneven = 0) const {
    std::vector<nn::LinearWeights<bf16>> weights;
    for (index_t e = 0; e < experts_; ++e) {
      const index_t at = e * (out * in + gap) + (e == 2 ? uneven : 0);
      weights.push_back(
          {.weight = Matrix<const bf16>(w_.data() + at, out, in), .gradient = Matrix<float>(dw_.data() + at, out, in)});
    }
    return nn::make_expert_linear<bf16>(gemms, weights, {});
  }

  struct Results {
    std::vector<bf16> y, dx;
    std::vector<float> dw;
  };
  Results results(deck::ExpertGemms gemms) {
    const auto linear = make(gemms);
    Array<bf16> y(rows_.received_rows * out, sentinel), dx(rows_.received_rows * in, sentinel);
    dw_.push();
    linear->forward(device_, rows_, x_.matrix(rows_.received_rows, in), y.matrix(rows_.received_rows, out));
    linear->backward_input(device_, rows_, dy_.matrix(rows_.received_rows, out), dx.matrix(rows_.received_rows, in));
    linear->backward_weight(device_, rows_, dy_.matrix(rows_.received_rows, out), x_.matrix(rows_.received_rows, in));
    device_.fence();
    y.pull(), dx.pull();
    return {y.host, dx.host, values_of(dw_.vector())};
  }

  static constexpr double sentinel = -77.0;
  const Counts& begin() const { return rows_.begin; }

 private:
  Timers timers_;
  Device device_{timers_};
  index_t experts_;
  Array<bf16> w_;
  Array<float> dw_;
  Array<std::int64_t> counts_, offsets_;
  nn::ExpertRows rows_;
  Array<bf16> x_{0}, dy_{0};
};

template <class T>
void expect_like(const std::vector<T>& ours, const std::vector<T>& theirs, double tolerance) {
  std::vector<double> expected;
  for (const T& value : theirs) expected.push_back(static_cast<double>(static_cast<float>(value)));
  expect_close(ours, expected, tolerance, 4.0);
}

TEST(ExpertLinear, GroupedFollowsTheLibrary) {
  for (const Counts& counts : {Counts{5, 0, 131, 1}, Counts{0, 0, 7}, Counts{0, 0}, Counts{130}}) {
    SCOPED_TRACE(testing::PrintToString(counts));
    Layer layer(counts);
    Counts expected(counts.size() + 1);
    std::partial_sum(counts.begin(), counts.end(), expected.begin() + 1);
    ASSERT_EQ(layer.begin(), expected);
    const Layer::Results grouped = layer.results(deck::ExpertGemms::grouped);
    const Layer::Results library = layer.results(deck::ExpertGemms::library);
    expect_like(grouped.y, library.y, 2 * unit_roundoff<bf16>());  // rows of no expert too: nobody writes them
    expect_like(grouped.dx, library.dx, 2 * unit_roundoff<bf16>());
    expect_like(grouped.dw, library.dw, 1e3 * unit_roundoff<float>());
    EXPECT_EQ(static_cast<float>(grouped.y.back()), static_cast<float>(Layer::sentinel));
  }
}

TEST(ExpertLinear, GroupedNeedsOneStride) {
  const Layer layer({1, 2, 3, 4});
  EXPECT_NO_THROW(layer.make(deck::ExpertGemms::library, 8));
  EXPECT_THROW(layer.make(deck::ExpertGemms::grouped, 8), Error);
}

// The rows of several ranks, of which each sends as many to an expert as its row of counts says.
TEST(ExpertOffsets, AddTheRowsOfAllRanks) {
  Timers timers;
  Device device(timers);
  Array<std::int64_t> counts(6), begin(4, -1.0);
  counts.host = {1, 0, 5, 2, 0, 7};
  counts.push();
  kernels::expert_offsets(device, Matrix<const std::int64_t>(counts.data(), 2, 3), begin.vector());
  device.fence();
  begin.pull();
  EXPECT_EQ(begin.host, (Counts{0, 3, 3, 15}));
}

}  // namespace
}  // namespace nanotron::test
