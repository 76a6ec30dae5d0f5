// ranks: 2
// timeout: 300
// Two steps, a checkpoint, two more on another grid, under many orders of the streams: what the serial run gives.

#include <gtest/gtest.h>

#include "nanotron/comm/transport/nccl_api.hpp"
#include "support/comparison.hpp"
#include "support/orders.hpp"
#include "support/sampling.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

// RCCL 2.21 has neither windows nor collectives by copy engines.
constexpr bool has_copies = NCCL_VERSION_CODE >= 22800;

class Resumed : public testing::TestWithParam<const char*> {};

TEST_P(Resumed, OnAnotherGridFollowsTheSerialRun) {
  deck::Config base = test::golden_config(GetParam());
  base.checkpoint.resume = "none";
  const test::Numbers reference = test::serial(base, 4);
  test::in_legal_orders([&] {
    const test::TemporaryFolder folder(test::world(), "resume");
    deck::Config config = base;
    config.checkpoint.directory = folder.path().string();
    config.parallel.tp = 2;
    config.parallel.register_memory = deck::MemoryRegistration::local;  // tp does not divide the vocabulary
    config.parallel.message_blocks = 4;
    test::run_training(config, test::world(), 2, true);
    config.checkpoint.resume = "auto";
    config.parallel.tp = 1;
    config.parallel.dp = 2;
    config.parallel.zero_stage = 3;
    if (has_copies) {
      config.parallel.register_memory = deck::MemoryRegistration::symmetric;
      config.parallel.collective_engine = deck::CollectiveEngine::copies;
    }
    test::run_training(config, test::world(), 3, true);
    config.parallel.dp = 1;
    config.parallel.zero_stage = 0;
    config.parallel.pp = 2;
    const test::Numbers last = test::run_training(config, test::world(), 4);
    ASSERT_EQ(last.losses.size(), 1u);
    EXPECT_NEAR(last.losses[0], reference.losses[3], 1e-11 * reference.losses[3]);
    EXPECT_EQ(last.hashes[0], reference.hashes[3]);
    test::expect_same_state(last.parameters, reference.parameters);
    test::expect_same_state(last.exp_avg, reference.exp_avg);
  });
}

INSTANTIATE_TEST_SUITE_P(Models, Resumed, testing::ValuesIn(test::turn_of({"llama", "qwen2_moe", "qwen3"})),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nanotron
