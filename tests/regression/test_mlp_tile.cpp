// ranks: 1 2 4
// timeout: 300
// Dense networks in tiles of tokens follow the serial run that computes all tokens at once, with less memory; one tile
// has its bits.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <iterator>
#include <sstream>

#include "nanotron/trainer/plan/plan.hpp"
#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = 2;
constexpr double tolerance = 1e-11;
constexpr auto split = deck::TpMode::reduce_scatter;

class Tiles : public testing::TestWithParam<const char*> {
 protected:
  Tiles() : config_(test::golden_config(GetParam())) {
    MPI_Comm_size(test::world(), &ranks_);
    config_.checkpoint.resume = "none";
    config_.data.sequence_length = 13;
    config_.data.micro_batch_size = 2;
    config_.model.num_hidden_layers = 4;
    config_.parallel.dp = 1;
    config_.parallel.tp = ranks_ > 1 ? 2 : 1;
    config_.parallel.pp = ranks_ > 2 ? 2 : 1;
    if (config_.model.moe.num_experts > 0) config_.model.moe.expert_layers = "!0 3";
  }

  void expect_follows(const test::Numbers& reference) const {
    const deck::ParallelConfig& p = config_.parallel;
    SCOPED_TRACE(fmt::format("tile {} recompute {} mode {} chunks {} schedule {}", p.mlp_tile,
                             static_cast<int>(p.recompute), static_cast<int>(p.tp_mode), p.tp_overlap_chunks,
                             static_cast<int>(p.pp_schedule)));
    const test::Numbers ours = test::run_training(config_, test::world(), steps);
    EXPECT_LT(test::worst_loss_difference(ours, reference), tolerance);
    EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel);
    // Without rotation the bias of the keys adds the same to all scores of a query: its gradient is rounding.
    test::expect_same_state(ours.parameters, reference.parameters, {"model/layers/self_attn/k_proj/bias"});
  }

  trainer::StepPlan planned(std::int64_t tile) const {
    deck::Config c = config_;
    c.parallel.mlp_tile = tile;
    trainer::resolve(c, ranks_);
    return trainer::plan_step(c, {});
  }

  int ranks_ = 1;
  deck::Config config_;
};

struct Case {
  std::int64_t tile;
  deck::Recompute recompute;
  std::int64_t chunks;  // of tp_mode = 'reduce_scatter'; 0: 'all_reduce'
};

TEST_P(Tiles, FollowTheSerialRun) {
  using enum deck::Recompute;
  const test::Numbers reference = test::serial(config_, steps);
  for (const Case& c : {Case{1, none, 0}, {4, selective, 0}, {4, full, 0}, {5, none, 3}, {4, full, 1}}) {
    if (c.chunks > 0 && ranks_ == 1) continue;
    config_.parallel.mlp_tile = c.tile;
    config_.parallel.recompute = c.recompute;
    config_.parallel.tp_mode = c.chunks > 0 ? split : deck::TpMode::all_reduce;
    config_.parallel.tp_overlap_chunks = std::max<std::int64_t>(1, c.chunks);
    expect_follows(reference);
  }
}

TEST_P(Tiles, FollowWithWeightGradientsLater) {
  if (ranks_ != 4) return;
  const test::Numbers reference = test::serial(config_, steps);
  config_.parallel.pp_schedule = deck::PpSchedule::zero_bubble;
  config_.parallel.mlp_tile = 5;
  for (const auto mode : {deck::TpMode::all_reduce, split}) {
    config_.parallel.tp_mode = mode;
    expect_follows(reference);
  }
}

// The weights of a layer are read for its weight gradients too, when other layers have used their memory since.
TEST_P(Tiles, FollowWithWeightsThatAreGatheredAgain) {
  if (ranks_ != 4) return;
  config_.model.num_hidden_layers = 8;
  config_.model.num_nextn_predict_layers = 1;
  config_.data.micro_batch_size = 1;
  const test::Numbers reference = test::serial(config_, steps);
  config_.parallel.tp = 1;
  config_.parallel.dp = 2;
  config_.parallel.zero_stage = 3;
  config_.parallel.pp_schedule = deck::PpSchedule::zero_bubble;
  config_.parallel.mlp_tile = 5;
  expect_follows(reference);
}

TEST_P(Tiles, OneHasTheBitsOfAllTokensAtOnce) {
  for (const auto mode : {deck::TpMode::all_reduce, split}) {
    config_.parallel.tp_mode = mode;
    config_.parallel.mlp_tile = 0;
    const test::Numbers whole = test::run_training(config_, test::world(), steps);
    config_.parallel.mlp_tile = 100;
    const test::Numbers tile = test::run_training(config_, test::world(), steps);
    EXPECT_EQ(tile.losses, whole.losses);
    EXPECT_EQ(tile.grad_norms, whole.grad_norms);
    EXPECT_EQ(tile.parameters, whole.parameters);
  }
}

// Without tiles each dense layer keeps gate_up and hidden of all tokens, or with 'full' all layers share them.
TEST_P(Tiles, TakeTheMemoryOfOne) {
  if (ranks_ != 1) return;
  const deck::ModelConfig& m = config_.model;
  const std::int64_t tokens = 26, tile = 4, row = 8 * m.intermediate_size * (m.is_gated() ? 3 : 2),
                     dhidden = 8 * m.intermediate_size, dense = m.moe.num_experts > 0 ? 2 : 4;
  const auto saved = [&](MemoryKind kind) {
    return static_cast<std::int64_t>(planned(0).memory.bytes[static_cast<std::size_t>(kind)]) -
           static_cast<std::int64_t>(planned(tile).memory.bytes[static_cast<std::size_t>(kind)]);
  };
  const auto expect_near = [](std::int64_t found, std::int64_t expected) {  // allocations are aligned
    EXPECT_LE(std::abs(found - expected), 20 * 256) << found << " and " << expected;
  };
  expect_near(saved(MemoryKind::activations), dense * tokens * row);
  expect_near(saved(MemoryKind::workspace), tokens * dhidden - tile * (row + dhidden));
  config_.parallel.recompute = deck::Recompute::full;
  EXPECT_EQ(saved(MemoryKind::activations), 0);
  expect_near(saved(MemoryKind::workspace), (tokens - tile) * (row + dhidden));
}

INSTANTIATE_TEST_SUITE_P(Models, Tiles, testing::Values("llama", "gpt2", "qwen2_moe"),
                         [](const auto& info) { return std::string(info.param); });

// What else changes the network of a layer or its gradients.
class TilesWith : public testing::TestWithParam<const char*> {};

TEST_P(TilesWith, OptionsFollowTheSerialRun) {
  int ranks = 1;
  MPI_Comm_size(test::world(), &ranks);
  std::istringstream keys(GetParam());
  deck::Config c = test::golden_config("llama", {std::istream_iterator<std::string>(keys), {}});
  c.checkpoint.resume = "none";
  c.data.sequence_length = 13;
  const test::Numbers reference = test::serial(c, steps);
  c.parallel.tp = ranks > 1 ? 2 : 1;
  c.parallel.dp = ranks / c.parallel.tp;
  c.parallel.tp_mode = split;
  c.parallel.mlp_tile = 5;
  const test::Numbers ours = test::run_training(c, test::world(), steps);
  EXPECT_LT(test::worst_loss_difference(ours, reference), tolerance);
  test::expect_same_state(ours.parameters, reference.parameters);
}

INSTANTIATE_TEST_SUITE_P(Options, TilesWith,
                         testing::Values("model.hidden_act=xielu", "model.mlp_bias=t", "model.hidden_dropout=0.2",
                                         "lora.rank=2 lora.base=initial"),
                         [](const auto& info) { return "n" + std::to_string(info.index); });

}  // namespace
}  // namespace nanotron
