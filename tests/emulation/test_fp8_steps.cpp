// ranks: 2
// timeout: 600
// Whole steps with FP8 GEMMs, whose rules the emulated library (cuBLASLt, hipBLASLt) checks, under many orders of the
// streams: the same bits in each, and what fp64 gives, within FP8.

#include <gtest/gtest.h>

#include <sstream>

#include "support/comparison.hpp"
#include "support/drawn_decks.hpp"
#include "support/orders.hpp"
#include "support/sampling.hpp"

namespace nanotron {
namespace {

using Keys = std::vector<std::string>;

// The parameter: keys with a blank between them; those of &model and &moe are the serial run's too.
class Fp8Steps : public testing::TestWithParam<const char*> {
 protected:
  test::TokensOfDocuments tokens_{"fp8_steps", 20'000};
};

TEST_P(Fp8Steps, FollowFp64AndChangeNoBit) {
  Keys serial{"data.path='" + tokens_.path() + "'",
              "data.sequence_length=32",
              "data.global_batch_size=4",
              "data.micro_batch_size=1",
              "checkpoint.resume=none",
              "model.intermediate_size=96"};
  Keys grid{"precision.compute=fp8"};
  std::istringstream words(GetParam());
  for (std::string key; words >> key;) (key.starts_with("mo") ? serial : grid).push_back(key);
  grid.insert(grid.begin(), serial.begin(), serial.end());
  const std::optional<deck::Config> base = test::deck_if_legal("llama", serial, 1);
  const std::optional<deck::Config> config = test::deck_if_legal("llama", grid, 2);
  ASSERT_TRUE(base && config);
  const test::Numbers reference = test::serial(*base, 2);
  std::optional<test::Numbers> first;
  test::in_legal_orders([&] {
    const test::Numbers last = test::run_training(*config, test::world(), 2);
    if (!first) first = last;
    EXPECT_EQ(last.losses, first->losses);
    EXPECT_TRUE(last.parameters == first->parameters);
    for (std::size_t i = 0; i < last.losses.size(); ++i) {
      EXPECT_NEAR(last.losses[i], reference.losses[i], 2e-2 * reference.losses[i]);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Grids, Fp8Steps,
    testing::ValuesIn(test::turn_of(
        {"parallel.tp=2 parallel.tp_mode=reduce_scatter parallel.tp_overlap_chunks=2 model.num_hidden_layers=2",
         "parallel.zero_stage=3 model.num_hidden_layers=2",
         "parallel.pp=2 parallel.pp_schedule=zero_bubble model.num_hidden_layers=4",
         "parallel.tp=2 parallel.recompute=selective model.num_hidden_layers=2",
         "parallel.zero_stage=1 parallel.recompute=full model.num_hidden_layers=2",
         "parallel.tp=2 precision.fp8_scales=blocks model.num_hidden_layers=2",
         "parallel.ep=2 precision.fp8_experts=t model.num_hidden_layers=2 moe.num_experts=4",
         "parallel.ep=2 precision.fp8_experts=t precision.fp8_scales=blocks parallel.ep_row_type=fp8 "
         "model.num_hidden_layers=2 moe.num_experts=4"})));

}  // namespace
}  // namespace nanotron
