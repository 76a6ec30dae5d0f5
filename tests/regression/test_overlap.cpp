// ranks: 2 3 4
// timeout: 300
// Sharded hidden states in chunks, with inputs gathered again or kept: every model follows the serial run, in every
// mode of recomputation and with backward in two parts, for tokens that divide neither by ranks nor by chunks.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = test::compared_steps;
constexpr double tolerance = 1e-11;

class Overlap : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    MPI_Comm_size(test::world(), &ranks_);
    config_ = test::golden_config(GetParam());
    config_.data.sequence_length = 7;
    reference_ = test::serial(config_, steps);
    config_.parallel.tp = ranks_ % 3 == 0 ? 3 : 2;
    config_.parallel.dp = ranks_ / config_.parallel.tp;
    config_.parallel.tp_mode = deck::TpMode::reduce_scatter;
  }

  test::Numbers follows(const test::Numbers& reference) const {
    SCOPED_TRACE(fmt::format("chunks {} inputs {} recompute {}", config_.parallel.tp_overlap_chunks,
                             static_cast<int>(config_.parallel.tp_gathered_inputs),
                             static_cast<int>(config_.parallel.recompute)));
    const test::Numbers ours = test::run_training(config_, test::world(), steps);
    EXPECT_LT(test::worst_loss_difference(ours, reference), tolerance);
    EXPECT_EQ(ours.hashes, reference.hashes);
    EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel);
    test::expect_same_state(ours.parameters, reference.parameters);
    test::expect_same_state(ours.exp_avg, reference.exp_avg);
    return ours;
  }

  int ranks_ = 1;
  deck::Config config_;
  test::Numbers reference_;
};

TEST_P(Overlap, FollowsTheSerialRun) {
  for (const std::int64_t chunks : {1, 2, 3}) {
    config_.parallel.tp_overlap_chunks = chunks;
    std::optional<test::Numbers> first;
    for (const auto inputs : {deck::GatheredInputs::gather_again, deck::GatheredInputs::keep}) {
      config_.parallel.tp_gathered_inputs = inputs;
      for (const auto recompute : {deck::Recompute::none, deck::Recompute::selective, deck::Recompute::full}) {
        config_.parallel.recompute = recompute;
        const test::Numbers ours = follows(reference_);
        if (!first) first = ours;
        EXPECT_EQ(ours.losses, first->losses);  // the same sums: no bit differs
        EXPECT_EQ(ours.parameters, first->parameters);
      }
    }
  }
}

TEST_P(Overlap, KeepingInputsSparesTwoGathersALayer) {
  config_.parallel.tp_overlap_chunks = 3;
  const test::Numbers again = test::run_training(config_, test::world(), 2);
  config_.parallel.tp_gathered_inputs = deck::GatheredInputs::keep;
  const test::Numbers kept = test::run_training(config_, test::world(), 2);
  const std::int64_t tp = config_.parallel.tp, tokens = config_.data.micro_batch_size * config_.data.sequence_length;
  const std::int64_t micro_batches =
      config_.data.global_batch_size / config_.parallel.dp / config_.data.micro_batch_size;
  EXPECT_EQ(
      static_cast<std::int64_t>(again.counted.tensor_parallel - kept.counted.tensor_parallel),
      8 * micro_batches * 2 * config_.model.num_hidden_layers * (tokens + tp - 1) / tp * config_.model.hidden_size);
}

TEST_P(Overlap, FollowsWithBackwardInTwoParts) {
  if (ranks_ != 4) return;
  config_.checkpoint.resume = "none";
  config_.model.num_hidden_layers = 5;
  deck::Config alone = config_;
  alone.parallel = {};
  const test::Numbers reference = test::serial(alone, steps);
  config_.parallel.dp = 1;
  config_.parallel.pp = 2;
  config_.parallel.pp_schedule = deck::PpSchedule::zero_bubble;
  for (const auto inputs : {deck::GatheredInputs::gather_again, deck::GatheredInputs::keep}) {
    config_.parallel.tp_gathered_inputs = inputs;
    config_.parallel.tp_overlap_chunks = 3;
    follows(reference);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Overlap, testing::Values("llama", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nanotron
