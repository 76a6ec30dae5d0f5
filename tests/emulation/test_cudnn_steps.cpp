// ranks: 2
// timeout: 300
// Whole steps in bf16 with attention by cuDNN, under many orders of the streams: what fp64 gives, within bf16. Its
// plans load modules, for which a device has to be idle: none while a receive is posted.

#include <cudnn_frontend.h>
#include <gtest/gtest.h>

#include <sstream>

#include "support/comparison.hpp"
#include "support/drawn_decks.hpp"
#include "support/orders.hpp"
#include "support/sampling.hpp"

namespace nanotron {
namespace {

using Keys = std::vector<std::string>;

// The parameter: keys with a blank between them; those of &data are the serial run's too.
class CudnnSteps : public testing::TestWithParam<const char*> {
 protected:
  test::TokensOfDocuments tokens_{"cudnn_steps", 20'000};
};

TEST_P(CudnnSteps, FollowFp64) {
  Keys serial{"data.path='" + tokens_.path() + "'",
              "data.sequence_length=128",
              "data.global_batch_size=4",
              "data.micro_batch_size=1",
              "checkpoint.resume=none",
              "model.num_hidden_layers=4"};
  Keys grid{"precision.compute=bf16"};
  std::istringstream words(GetParam());
  for (std::string key; words >> key;) (key.starts_with("data.") ? serial : grid).push_back(key);
  grid.insert(grid.begin(), serial.begin(), serial.end());
  const std::optional<deck::Config> base = test::deck_if_legal("llama", serial, 1);
  const std::optional<deck::Config> config = test::deck_if_legal("llama", grid, 2);
  ASSERT_TRUE(base && config);
  const test::Numbers reference = test::serial(*base, 2);
  test::in_legal_orders([&] {
    const auto before = cudnn_frontend::graph::executions();
    const test::Numbers last = test::run_training(*config, test::world(), 2);
    const auto after = cudnn_frontend::graph::executions();
    EXPECT_GT(after.all, before.all);
    const bool repeats = config->precision.reproducible == deck::Reproducible::run;
    EXPECT_EQ(after.deterministic > before.deterministic, repeats);
    EXPECT_EQ(after.fastest > before.fastest, !repeats);
    for (std::size_t i = 0; i < last.losses.size(); ++i) {
      EXPECT_NEAR(last.losses[i], reference.losses[i], 5e-3 * reference.losses[i]);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Grids, CudnnSteps,
    testing::ValuesIn(test::turn_of(
        {"parallel.pp=2 parallel.pp_schedule=1f1b", "parallel.cp=2 data.sequence_length=256 data.global_batch_size=2",
         "parallel.pp=2 parallel.pp_schedule=zero_bubble", "parallel.cp=2 parallel.cp_mode=all_to_all",
         "parallel.pp=2 parallel.pp_schedule=gpipe precision.reproducible=run",
         "parallel.tp=2 parallel.recompute=full"})));

}  // namespace
}  // namespace nanotron
