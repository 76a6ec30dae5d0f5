// ranks: 1
// Layers of all experts: the grouped GEMMs give what those of the library give, whatever rows the experts have.
#include <bit>
#include <numeric>
#include <optional>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "nanotron/kernels/gemm/own_tiles.hpp"
#include "nanotron/kernels/moe/expert_rows.hpp"
#include "nanotron/nn/moe/expert_linear.hpp"
#include "nanotron/nn/moe/fp8_experts.hpp"
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
    kernels::expert_offsets(device_, Matrix<const std::int64_t>(counts_.data(), 1, experts_), 1, offsets_.vector());
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

  // With FP8 operands. scaling: of the weights.
  std::unique_ptr<const nn::ExpertLinear<bf16>> make_fp8(deck::ExpertGemms gemms, kernels::Fp8Scaling scaling) {
    Arena plan = Arena::planning();
    nn::take_fp8_experts(plan, experts_, out, in, scaling);
    arena_.emplace(plan.plan());
    const nn::Fp8Experts codes = nn::take_fp8_experts(*arena_, experts_, out, in, scaling);
    const Array<float> maxima(out);
    std::vector<Matrix<float>> gradients;
    for (index_t e = 0; e < experts_; ++e) {
      const index_t at = e * (out * in + gap);
      const Matrix<const bf16> w(w_.data() + at, out, in);
      gradients.push_back(Matrix<float>(dw_.data() + at, out, in));
      if (scaling == kernels::Fp8Scaling::blocks) {
        kernels::quantise_parts(device_, w, codes[e]);
      } else {
        kernels::row_maxima<bf16>(device_, w, maxima.vector());
        kernels::quantise<e4m3>(device_, w, maxima.read(), codes[e]);
      }
    }
    device_.fence();
    const nn::MoeSizes sizes{
        .hidden = in, .experts = experts_, .width = out / 2, .rows = rows_.received_rows, .gemms = gemms};
    const nn::ExpertCodeBytes bytes = nn::fp8_expert_bytes(sizes, 1, scaling, built_for);
    workspace_ = Bytes("rows", static_cast<std::size_t>(bytes.rows));
    gemm_workspace_ = Bytes("GEMM workspace", bytes.gemm);
    device_.set_gemm_workspace(Vector<std::byte>(gemm_workspace_.data(), gemm_workspace_.size()));
    return nn::make_fp8_experts(codes)->linear(gemms, gradients,
                                               Vector<std::byte>(workspace_.data(), workspace_.size()));
  }

  struct Results {
    std::vector<bf16> y, dx;
    std::vector<float> dw;
  };
  Results results(deck::ExpertGemms gemms) { return results(*make(gemms)); }
  Results results(const nn::ExpertLinear<bf16>& expert_linear) {
    const auto* const linear = &expert_linear;
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
  using Bytes = Kokkos::View<std::byte*, MemorySpace>;
  std::optional<Arena> arena_;
  Bytes workspace_, gemm_workspace_;
};

template <class T>
double distance(const std::vector<T>& ours, const std::vector<T>& theirs) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const auto a = static_cast<double>(ours[i]), b = static_cast<double>(theirs[i]);
    if (b == Layer::sentinel) continue;
    difference += (a - b) * (a - b);
    size += b * b;
  }
  return size > 0 ? std::sqrt(difference / size) : 0.0;
}

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

// Both ways of multiplying are near those in bf16. Where the rows of every expert are one piece of the library's, both
// multiply the same codes.
TEST(ExpertLinear, OfFp8IsNearTheOneInBf16) {
  for (const Counts& counts : {Counts{5, 0, 131, 1}, Counts{0, 0}, Counts{256, 0, 64, 8}}) {
    for (const auto scaling : {kernels::Fp8Scaling::tensor, kernels::Fp8Scaling::blocks}) {
      SCOPED_TRACE(testing::PrintToString(counts) + (scaling == kernels::Fp8Scaling::blocks ? " blocks" : ""));
      Layer layer(counts);
      const Layer::Results wide = layer.results(deck::ExpertGemms::library);
      const Layer::Results grouped = layer.results(*layer.make_fp8(deck::ExpertGemms::grouped, scaling));
      const Layer::Results library = layer.results(*layer.make_fp8(deck::ExpertGemms::library, scaling));
      const double of_gradients = scaling == kernels::Fp8Scaling::blocks ? 0.06 : 0.1;
      for (const Layer::Results& fp8 : {grouped, library}) {
        EXPECT_LT(distance(fp8.y, wide.y), 0.06);
        EXPECT_LT(distance(fp8.dx, wide.dx), of_gradients);
        EXPECT_LT(distance(fp8.dw, wide.dw), of_gradients);
        EXPECT_EQ(static_cast<float>(fp8.y.back()), static_cast<float>(Layer::sentinel));
        if (layer.begin().back() > 0) {
          EXPECT_GT(distance(fp8.y, wide.y), 0.001) << "nothing was quantised";
        }
      }
      if (counts[0] != 256) continue;
      expect_like(grouped.y, library.y, 2 * unit_roundoff<bf16>());
      expect_like(grouped.dx, library.dx, 2 * unit_roundoff<bf16>());
      expect_like(grouped.dw, library.dw, 1e3 * unit_roundoff<float>());
    }
  }
}

TEST(ExpertLinear, GroupedNeedsOneStride) {
  const Layer layer({1, 2, 3, 4});
  EXPECT_NO_THROW(layer.make(deck::ExpertGemms::library, 8));
  EXPECT_THROW(layer.make(deck::ExpertGemms::grouped, 8), Error);
}

// GEMMs on tiles of our own keep nothing for a shape: all rows of an expert are one GEMM. Elsewhere, and for a few
// rows, they are multiplied in pieces of a power of two.
TEST(ExpertLinear, MultipliesAllRowsOfAnExpertAtOnceOnTiles) {
  constexpr index_t out = 96, in = 64;
  const Counts counts{131, 0, 70, 5};
  nn::ExpertRows rows;
  rows.begin.assign(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), rows.begin.begin() + 1);
  const index_t all = rows.received_rows = rows.begin.back();
  const auto w = Array<bf16>::random(4 * out * in, 1), x = Array<bf16>::random(all * in, 2),
             dy = Array<bf16>::random(all * out, 3);
  const Array<float> dw(4 * out * in, 0.5), expected(4 * out * in, 0.5);
  const Array<bf16> y(all * out), dx(all * in);
  const auto of = [](const Array<float>& g, index_t e) { return Matrix<float>(g.data() + e * out * in, out, in); };
  std::vector<nn::LinearWeights<bf16>> weights;
  for (index_t e = 0; e < 4; ++e)
    weights.push_back({.weight = Matrix<const bf16>(w.data() + e * out * in, out, in), .gradient = of(dw, e)});
  const auto linear = nn::make_expert_linear<bf16>(deck::ExpertGemms::library, weights, {});

  Timers timers;
  Device device(timers);
  const std::size_t bytes = kernels::gemm_workspace_bytes<bf16>(GemmMode::library, built_for, all, out, all);
  const Kokkos::View<std::byte*, MemorySpace> workspace("GEMM workspace", bytes);
  device.set_gemm_workspace(Vector<std::byte>(workspace.data(), workspace.size()));
  const auto gemms = [&](const auto& run) {
    timers.reset();
    run();
    device.fence();
    for (const TimerRow& row : timers.rows()) {
      if (std::string(row.name) == "gemm") return row.calls;
    }
    return std::uint64_t{0};
  };
  const bool tiles = kernels::runs_on_tiles<bf16>(device, 64);  // 64 + 4 + 2 = 70 rows, 128 + 2 + 1 = 131, 4 + 1 = 5
  EXPECT_EQ(gemms([&] { linear->forward(device, rows, x.matrix(all, in), y.matrix(all, out)); }), tiles ? 4 : 8);
  EXPECT_EQ(gemms([&] { linear->backward_input(device, rows, dy.matrix(all, out), dx.matrix(all, in)); }),
            tiles ? 4 : 8);
  EXPECT_EQ(gemms([&] { linear->backward_weight(device, rows, dy.matrix(all, out), x.matrix(all, in)); }),
            tiles ? 3 : 8);

  for (index_t e = 0, at = 0; e < 4; ++e) {
    for (index_t left = counts[static_cast<std::size_t>(e)]; left > 0;) {
      const index_t n = tiles ? left : static_cast<index_t>(std::bit_floor(static_cast<std::size_t>(left)));
      kernels::gemm<bf16, float>(device, kernels::Op::transpose, kernels::Op::none, 1.0,
                                 Matrix<const bf16>(dy.data() + at * out, n, out),
                                 Matrix<const bf16>(x.data() + at * in, n, in), 1.0, MatrixRef<float>(of(expected, e)));
      at += n, left -= n;
    }
  }
  device.fence();
  EXPECT_EQ(values_of(dw.vector()), values_of(expected.vector()));
}

// The rows of several ranks, of which each sends as many to an expert as its row of counts says.
TEST(ExpertOffsets, AddTheRowsOfAllRanks) {
  Timers timers;
  Device device(timers);
  Array<std::int64_t> counts(6), begin(4, -1.0);
  counts.host = {1, 0, 5, 2, 0, 7};
  counts.push();
  kernels::expert_offsets(device, Matrix<const std::int64_t>(counts.data(), 2, 3), 1, begin.vector());
  device.fence();
  begin.pull();
  EXPECT_EQ(begin.host, (Counts{0, 3, 3, 15}));

  Array<std::int64_t> pairs(8), of_pairs(3, -1.0);  // two parts of each of two experts
  pairs.host = {1, 0, 5, 2, 0, 7, 1, 1};
  pairs.push();
  kernels::expert_offsets(device, Matrix<const std::int64_t>(pairs.data(), 2, 4), 2, of_pairs.vector());
  device.fence();
  of_pairs.pull();
  EXPECT_EQ(of_pairs.host, (Counts{0, 8, 17}));
}

}  // namespace
}  // namespace nanotron::test
