// ranks: 2 3 4 6
// timeout: 300
// Parameters, gradients and moments sharded over replicas follow the serial run, in every stage, group size and
// split of the model; what they take and what they send is what was predicted.

#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = 10;
constexpr double tolerance = 1e-11;

class Zero : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    MPI_Comm_size(test::world(), &ranks_);
    MPI_Comm_rank(test::world(), &rank_);
    config_ = test::golden_config(std::get<0>(GetParam()));
    config_.parallel.zero_stage = std::get<1>(GetParam());
  }

  // Divisors of `replicas`, 1 left out; 0 stands for all.
  static std::vector<std::int64_t> group_sizes(std::int64_t replicas) {
    std::vector<std::int64_t> sizes{0};
    for (std::int64_t s = 2; s < replicas; ++s) {
      if (replicas % s == 0) sizes.push_back(s);
    }
    return sizes;
  }

  test::Numbers run(std::int64_t until = steps) const { return test::run_training(config_, test::world(), until); }

  // Scalars of a step: loss and hash over the replicas, the squares of the gradient over a shard group.
  std::uint64_t scalars() const {
    deck::Config c = config_;
    deck::resolve(c, ranks_);
    if (c.parallel.dp == 1) return 0;
    return sizeof(double) + sizeof(std::uint64_t) + (deck::shard_group_size(c.parallel) > 1 ? sizeof(double) : 0);
  }

  void expect_follows(const test::Numbers& ours, const test::Numbers& reference) const {
    EXPECT_LT(test::worst_loss_difference(ours, reference), tolerance);
    EXPECT_EQ(ours.hashes, reference.hashes);
    EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel);
    EXPECT_EQ(ours.counted.data_parallel, ours.predicted.data_parallel + scalars());
    test::expect_same_state(ours.parameters, reference.parameters);
    test::expect_same_state(ours.exp_avg, reference.exp_avg);
    test::expect_same_state(ours.exp_avg_sq, reference.exp_avg_sq);
  }

  int ranks_ = 1, rank_ = 0;
  deck::Config config_;
};

TEST_P(Zero, FollowsTheSerialRun) {
  const test::Numbers reference = test::serial(config_, steps);
  double worst = 0.0;
  for (const std::int64_t tp : {1, 2, 3}) {
    const std::int64_t dp = ranks_ / tp;
    if (tp * dp != ranks_ || dp == 1 || 8 % dp != 0) continue;
    config_.parallel.tp = tp;
    config_.parallel.dp = dp;
    for (const auto mode : {deck::TpMode::all_reduce, deck::TpMode::reduce_scatter}) {
      if (tp == 1 && mode == deck::TpMode::reduce_scatter) continue;
      config_.parallel.tp_mode = mode;
      for (const std::int64_t size : group_sizes(dp)) {
        SCOPED_TRACE(fmt::format("tp {} dp {} zero_size {} tp_mode {}", tp, dp, size, static_cast<int>(mode)));
        config_.parallel.zero_size = size;
        const test::Numbers ours = run();
        worst = std::max(worst, test::worst_loss_difference(ours, reference));
        expect_follows(ours, reference);
      }
    }
  }
  if (rank_ == 0) {
    std::printf("%s stage %d on %d ranks: worst relative difference %.1e\n", std::get<0>(GetParam()),
                std::get<1>(GetParam()), ranks_, worst);
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, Zero,
                         testing::Combine(testing::Values("llama", "qwen2", "qwen3"), testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param));
                         });

}  // namespace
}  // namespace nanotron
