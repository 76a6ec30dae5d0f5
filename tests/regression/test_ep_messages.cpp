// ranks: 2 4
// timeout: 600
// parallel%ep_messages = 'by_node': rows that travel once to each node. Numbers are those of messages by rank: in fp64
// to rounding, since sums of a node are added first; what is sent is counted, and predicted for tokens that choose
// their experts at random.

#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/expert_runs.hpp"

namespace nanotron {
namespace {

using deck::ExpertMessages;

constexpr std::int64_t steps = test::compared_steps;

class EpMessages : public testing::TestWithParam<const char*> {
 protected:
  deck::Config config_of() const {
    deck::Config c = test::over_data_ranks(GetParam(), ScalarType::fp64, steps);
    if (c.model.moe.num_experts % c.parallel.dp == 0) c.parallel.ep = c.parallel.dp;
    return c;
  }
  static test::Numbers by_node(deck::Config c, std::int64_t nodes, std::int64_t until = steps) {
    c.parallel.ep_messages = ExpertMessages::by_node;
    c.parallel.ep_nodes = nodes;
    return test::run_training(c, test::world(), until);
  }
};

void expect_same(const test::Numbers& ours, const test::Numbers& theirs) {
  EXPECT_LT(test::worst_loss_difference(ours, theirs), 1e-11);
  test::expect_same_state(ours.parameters, theirs.parameters);
}

TEST_P(EpMessages, ByNodeGiveTheNumbersOfThoseByRank) {
  const deck::Config config = config_of();
  const test::Numbers by_rank = test::run_training(config, test::world(), steps);
  for (std::int64_t nodes = 2; nodes <= config.parallel.ep; nodes *= 2) {
    const test::Numbers ours = by_node(config, nodes);
    expect_same(ours, by_rank);
    const auto sent = static_cast<double>(test::over_world(ours.counted.expert_parallel)),
               predicted = static_cast<double>(test::over_world(ours.predicted.expert_parallel));
    EXPECT_NEAR(sent / predicted, 1.0, 0.1) << nodes;
    EXPECT_NE(ours.counted.expert_parallel, by_rank.counted.expert_parallel);
  }
  // One node: as by rank, with all its bits.
  EXPECT_EQ(by_node(config, 1).losses, by_rank.losses);
}

TEST_P(EpMessages, WithOtherKeysOfExperts) {
  deck::Config few = config_of(), full = few, turns = few;
  few.model.moe.capacity_factor = 0.6;
  full.parallel.recompute = deck::Recompute::full;
  for (const deck::Config& config : {few, full})
    expect_same(by_node(config, 2), test::run_training(config, test::world(), steps));
  turns.data.micro_batch_size = 2;
  turns.parallel.ep_overlap = true;
  turns.data.global_batch_size = 2 * turns.parallel.dp;
  expect_same(by_node(turns, 2, 3), test::run_training(turns, test::world(), 3));
}

// Forwarded codes are those that arrived; sums of a node return in bf16.
TEST_P(EpMessages, RowsInANarrowerForm) {
  deck::Config config = config_of();
  config.precision.compute = ScalarType::fp32;
  config.parallel.ep_row_type = deck::ExpertRowType::fp8;
  const test::Numbers by_rank = test::run_training(config, test::world(), steps), ours = by_node(config, 2);
  EXPECT_LT(test::largest_relative_difference(ours.losses, by_rank.losses), 5e-3);
  EXPECT_LT(ours.predicted.expert_parallel, by_node(config_of(), 2, 1).predicted.expert_parallel);
}

// Grouped GEMMs find the rows of an expert on the device.
TEST_P(EpMessages, WithGroupedGemms) {
  deck::Config config = config_of();
  config.precision.compute = ScalarType::bf16;
  config.model.hidden_size = 32;
  config.model.head_dim = 8;
  config.model.moe.moe_intermediate_size = 24;
  const test::Numbers library = by_node(config, 2, 3);
  config.run.expert_gemms = deck::ExpertGemms::grouped;
  EXPECT_LT(test::largest_relative_difference(by_node(config, 2, 3).losses, library.losses), 1e-2);
}

// A rank with fewer tokens than others receives and forwards those of a longer shard.
TEST_P(EpMessages, OfUnevenShardsOfASequence) {
  deck::Config config = config_of();
  config.parallel.dp /= 2;
  config.parallel.cp = 2;
  config.data.sequence_length = 13;
  config.model.moe.num_experts_per_tok = 3;
  expect_same(by_node(config, 2), test::run_training(config, test::world(), steps));
}

INSTANTIATE_TEST_SUITE_P(Models, EpMessages, testing::Values("mixtral", "qwen2_moe"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nanotron
