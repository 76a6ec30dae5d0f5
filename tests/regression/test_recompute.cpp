// ranks: 1 2 4
// timeout: 300
// Layers that recompute activations and layers that keep them compute the same bits, and those that keep need memory.

#include <gtest/gtest.h>

#include "nanotron/trainer/plan/plan.hpp"
#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = 3;

class RecomputedLayers : public testing::TestWithParam<const char*> {
 protected:
  RecomputedLayers() { MPI_Comm_size(test::world(), &ranks_); }

  // Two ranks: a pipeline; four: also tensor parallel.
  deck::Config config(deck::Recompute how, const std::string& layers) const {
    deck::Config c = test::golden_config(GetParam());
    c.checkpoint.resume = "none";
    c.model.num_hidden_layers = 6;
    c.parallel.recompute = how;
    c.parallel.recompute_layers = layers;
    c.parallel.pp = ranks_ > 1 ? 2 : 1;
    c.parallel.tp = ranks_ > 2 ? 2 : 1;
    c.parallel.tp_mode = ranks_ > 2 ? deck::TpMode::reduce_scatter : deck::TpMode::all_reduce;
    c.parallel.dp = 1;
    c.data.micro_batch_size = 1;
    trainer::resolve(c, ranks_);
    return c;
  }
  std::size_t bytes(deck::Recompute how, const std::string& layers) const {
    return trainer::plan_step(config(how, layers), {}).memory.total();
  }

  int ranks_ = 1;
};

TEST_P(RecomputedLayers, HaveTheBitsOfThoseThatKeep) {
  const test::Numbers kept = test::run_training(config(deck::Recompute::none, "all"), test::world(), steps);
  for (const deck::Recompute how : {deck::Recompute::selective, deck::Recompute::full}) {
    for (const char* layers : {"all", "1:1", "!0 3", "5", "none"}) {
      const test::Numbers ours = test::run_training(config(how, layers), test::world(), steps);
      EXPECT_EQ(ours.losses, kept.losses) << layers;
      EXPECT_EQ(ours.grad_norms, kept.grad_norms) << layers;
      EXPECT_EQ(ours.parameters, kept.parameters) << layers;
      EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel) << layers;
    }
  }
}

// The layers of the first stage on the rank that is planned: 0 to 2 of six, or all.
TEST_P(RecomputedLayers, TakeLessMemoryTheMoreThereAre) {
  for (const deck::Recompute how : {deck::Recompute::selective, deck::Recompute::full}) {
    const std::size_t one = bytes(how, "0"), two = bytes(how, "0-1"), three = bytes(how, "0-2");
    EXPECT_EQ(bytes(how, "none"), bytes(deck::Recompute::none, "all"));
    EXPECT_LT(two, one);
    EXPECT_EQ(one - two, two - three);  // what all share is there from the first one on
    EXPECT_EQ(bytes(how, "0-5"), bytes(how, "all"));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RecomputedLayers, testing::Values("llama", "qwen2_moe"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nanotron
