// ranks: 2 4
// timeout: 600
// parallel%recompute_dispatch: backward receives the input rows of experts again. The same bits, less memory, and the
// messages that were predicted.

#include <gtest/gtest.h>

#include "nanotron/trainer/plan/plan.hpp"
#include "support/expert_runs.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = 4;

class RecomputeDispatch : public testing::TestWithParam<const char*> {
 protected:
  deck::Config config_of() const { return test::over_data_ranks(GetParam(), ScalarType::fp32, steps); }
  // The bytes of the second dispatches, and of the memory that they free.
  static void expect_same_bits(const deck::Config& kept) {
    deck::Config again = kept;
    again.parallel.recompute_dispatch = true;
    const test::Numbers theirs = test::run_training(kept, test::world(), steps),
                        ours = test::run_training(again, test::world(), steps);
    EXPECT_EQ(ours.losses, theirs.losses);
    EXPECT_EQ(ours.grad_norms, theirs.grad_norms);
    EXPECT_EQ(ours.parameters, theirs.parameters);
    EXPECT_GT(ours.predicted.expert_parallel, theirs.predicted.expert_parallel);
    EXPECT_GT(ours.counted.expert_parallel, theirs.counted.expert_parallel);
    const MemoryPlan less = trainer::plan_step(again, {}).memory, all = trainer::plan_step(kept, {}).memory;
    EXPECT_LT(less.total(), all.total());
  }
};

TEST_P(RecomputeDispatch, HasTheSameBits) {
  for (const deck::Recompute mode : {deck::Recompute::none, deck::Recompute::selective}) {
    deck::Config config = config_of();
    config.parallel.recompute = mode;
    expect_same_bits(config);
  }
}

// Layers that are computed again as a whole receive their rows once more with all else, and not a third time.
TEST_P(RecomputeDispatch, BesideLayersThatAreComputedAgain) {
  deck::Config config = config_of();
  const auto extra = [&](const deck::Config& kept) {
    deck::Config again = kept;
    again.parallel.recompute_dispatch = true;
    return test::run_training(again, test::world(), 1).counted.expert_parallel -
           test::run_training(kept, test::world(), 1).counted.expert_parallel;
  };
  const std::uint64_t of_all = extra(config);
  config.parallel.recompute = deck::Recompute::full;
  config.parallel.recompute_layers = "0";
  expect_same_bits(config);
  EXPECT_EQ(extra(config) * static_cast<std::uint64_t>(config.model.num_hidden_layers), of_all);
}

TEST_P(RecomputeDispatch, InTurnsInNarrowRowsAndByNode) {
  deck::Config turns = config_of();
  turns.parallel.ep_overlap = true;
  turns.data.micro_batch_size = 2;
  turns.data.global_batch_size = 2 * turns.parallel.dp;
  expect_same_bits(turns);
  turns.parallel.ep_row_type = deck::ExpertRowType::fp8;
  turns.parallel.ep_messages = deck::ExpertMessages::by_node;
  turns.parallel.ep_nodes = 2;
  expect_same_bits(turns);
}

TEST_P(RecomputeDispatch, InAPipeline) {
  deck::Config config = config_of();
  if (config.parallel.dp < 4) GTEST_SKIP() << "needs 4 ranks";
  config.parallel.dp = 2;
  config.parallel.pp = 2;
  expect_same_bits(config);
}

INSTANTIATE_TEST_SUITE_P(Models, RecomputeDispatch, testing::Values("mixtral", "qwen2_moe"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nanotron
