// ranks: 1 2 4
// timeout: 300
// Activations that wait in host memory change no bit: models, recomputation, numbers of layers, pipelines of every
// schedule with several micro-batches in flight. They take the memory of three layers on the device.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "nanotron/trainer/plan/plan.hpp"
#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = 3;

class OffloadedLayers : public testing::TestWithParam<const char*> {
 protected:
  OffloadedLayers() { MPI_Comm_size(test::world(), &ranks_); }

  // Two ranks: a pipeline; four: also sharded parameters.
  deck::Config config(std::int64_t layers, deck::Recompute how, deck::PpSchedule schedule) const {
    const std::string name = GetParam();
    deck::Config c = test::golden_config(name == "adapters" ? "qwen3" : name);
    if (name == "adapters") {
      c.lora.rank = 2;
      c.lora.base = "initial";
    }
    c.checkpoint.resume = "none";
    c.model.num_hidden_layers = 8;
    c.parallel.offload_layers = layers;
    c.parallel.recompute = how;
    c.parallel.pp = ranks_ > 1 ? 2 : 1;
    c.parallel.pp_schedule = schedule;
    c.parallel.dp = ranks_ > 2 ? 2 : 1;
    c.parallel.zero_stage = ranks_ > 2 ? 3 : 0;
    c.data.micro_batch_size = 1;
    c.data.global_batch_size = 8;
    c.data.validation_fraction = 0.1;
    c.data.validation_every = 2;
    c.data.validation_batches = 1;
    trainer::resolve(c, ranks_);
    return c;
  }
  std::vector<deck::PpSchedule> schedules() const {
    using enum deck::PpSchedule;
    return ranks_ > 1 ? std::vector{gpipe, one_f_one_b, interleaved_1f1b} : std::vector{one_f_one_b};
  }
  int ranks_ = 1;
};

TEST_P(OffloadedLayers, ChangeNoBit) {
  using enum deck::Recompute;
  for (const deck::PpSchedule schedule : schedules()) {
    for (const deck::Recompute how : {none, selective, full}) {
      const test::Numbers kept = test::run_training(config(0, how, schedule), test::world(), steps);
      for (const std::int64_t layers : {1, 2, 3, 4, 7, 8}) {
        SCOPED_TRACE(fmt::format("schedule {}, recompute {}, {} layers", static_cast<int>(schedule),
                                 static_cast<int>(how), layers));
        const test::Numbers ours = test::run_training(config(layers, how, schedule), test::world(), steps);
        EXPECT_EQ(ours.losses, kept.losses);
        EXPECT_EQ(ours.grad_norms, kept.grad_norms);
        EXPECT_EQ(ours.parameters, kept.parameters);
      }
    }
  }
}

// Of one rank: the plan loses a layer for each one from the fourth on, and the host has what they need.
TEST_P(OffloadedLayers, TakeTheMemoryOfThree) {
  if (ranks_ > 1) return;
  const auto plan = [&](std::int64_t layers) {
    return trainer::plan_step(config(layers, deck::Recompute::none, deck::PpSchedule::one_f_one_b), {}).memory;
  };
  const MemoryPlan none = plan(0), four = plan(4), five = plan(5), eight = plan(8), more = plan(9);
  const std::size_t layer = five.on_host() - four.on_host();
  EXPECT_EQ(none.on_host(), 0u);
  EXPECT_GT(layer, 0u);
  EXPECT_NEAR(static_cast<double>(four.total() - five.total()), static_cast<double>(layer), 512.0);
  EXPECT_NEAR(static_cast<double>(four.total() - eight.total()), 4.0 * static_cast<double>(layer), 2048.0);
  EXPECT_NEAR(static_cast<double>(none.total() - eight.total()), 5.0 * static_cast<double>(layer),
              0.1 * static_cast<double>(layer));
  EXPECT_EQ(eight.total(), more.total());
  EXPECT_EQ(eight.on_host(), more.on_host());
}

INSTANTIATE_TEST_SUITE_P(Models, OffloadedLayers, testing::Values("llama", "qwen2_moe", "adapters"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nanotron
