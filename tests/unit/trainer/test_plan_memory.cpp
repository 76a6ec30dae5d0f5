// What the arena is planned for, by kind of memory and grid.
#include <gtest/gtest.h>

#include "nanotron/trainer/plan/plan.hpp"

namespace nanotron::trainer {
namespace {

class PlanMemory : public testing::Test {
 protected:
  PlanMemory() {
    config_.precision.compute = ScalarType::fp32;
    config_.model.hidden_size = 256;
    config_.model.num_hidden_layers = 6;
    config_.model.num_attention_heads = 8;
    config_.model.num_key_value_heads = 8;
    config_.model.head_dim = 32;
    config_.model.intermediate_size = 768;
    config_.model.vocab_size = 1024;
    config_.data.sequence_length = 512;
    config_.data.micro_batch_size = 2;
    config_.data.global_batch_size = 2;
    config_.parallel.dp = 1;
  }

  double activations(int tp, deck::TpMode mode) {
    config_.parallel.tp = tp;
    config_.parallel.tp_mode = mode;
    const MemoryPlan plan = plan_step(config_, {}).memory;
    return static_cast<double>(plan.bytes[static_cast<std::size_t>(MemoryKind::activations)]);
  }

  // Of activations and workspace, with sharded hidden states on 4 ranks.
  std::size_t stream_bytes(deck::GatheredInputs inputs, deck::Recompute recompute) {
    config_.parallel.tp = 4;
    config_.parallel.tp_mode = deck::TpMode::reduce_scatter;
    config_.parallel.tp_gathered_inputs = inputs;
    config_.parallel.recompute = recompute;
    const MemoryPlan plan = plan_step(config_, {}).memory;
    return plan.bytes[static_cast<std::size_t>(MemoryKind::activations)] +
           plan.bytes[static_cast<std::size_t>(MemoryKind::workspace)];
  }

  // Elements of 4 bytes on each of `dp` ranks.
  MemoryPlan sharded(int stage, int dp, ScalarType compute) {
    config_.precision.compute = compute;
    config_.data.global_batch_size = 2 * dp;
    config_.parallel.dp = dp;
    config_.parallel.zero_stage = stage;
    return plan_step(config_, {}).memory;
  }

  deck::Config config_;
};

// Sharded hidden states reduce all that layers keep; replicated ones only what is inside the blocks (Korthikanti et al.
// 2022, equations 2 and 4), in elements of T for a token and layer: 4 h outside, 4 h + 3 f inside.
TEST_F(PlanMemory, SequenceParallelTakesOneTpthOfTheActivations) {
  const double alone = activations(1, deck::TpMode::all_reduce);
  const double h = 256, f = 768, outside = 4 * h, inside = 4 * h + 3 * f;
  for (const int tp : {2, 4, 8}) {
    EXPECT_NEAR(activations(tp, deck::TpMode::reduce_scatter) / alone, 1.0 / tp, 0.01 / tp) << tp;
    EXPECT_NEAR(activations(tp, deck::TpMode::all_reduce) / alone, (outside + inside / tp) / (outside + inside), 0.03)
        << tp;
  }
}

// n1 and n2 of all tokens in every layer, where those of a rank were kept (none), computed again (selective: they share
// one place), or the whole layer is (full: one place for all).
TEST_F(PlanMemory, KeptInputsTakeTheRowsOfAllTokens) {
  config_.data.sequence_length = 511;  // 2 x 511 tokens do not divide by 4
  const std::size_t row = 2 * 256 * sizeof(float), mine = 256, all = 4 * mine, layers = 6;
  const auto more = [&](deck::Recompute recompute) {
    return stream_bytes(deck::GatheredInputs::keep, recompute) -
           stream_bytes(deck::GatheredInputs::gather_again, recompute);
  };
  EXPECT_EQ(more(deck::Recompute::none), row * (layers * all - (layers - 1) * mine));
  EXPECT_EQ(more(deck::Recompute::selective), row * layers * all);
  EXPECT_EQ(more(deck::Recompute::full), row * all);
}

// ZeRO takes 1 / ranks of the moments, from stage 2 on of the gradients, from stage 3 on of the weights, besides
// slots for the largest of embedding and head and for two of the six layers.
TEST_F(PlanMemory, EachZeroStageShardsMore) {
  for (const ScalarType type : {ScalarType::fp32, ScalarType::bf16}) {
    SCOPED_TRACE(name_of(type));
    const auto bytes = [](const MemoryPlan& plan, MemoryKind kind) {
      return static_cast<double>(plan.bytes[static_cast<std::size_t>(kind)]);
    };
    const MemoryPlan whole = sharded(0, 8, type);
    const double all = bytes(whole, MemoryKind::gradients);
    const double layer = 4.0 * (4 * 256 * 256 + 3 * 256 * 768), outer = 4.0 * 1024 * 256;
    const double slots = (outer + 2 * layer) / all;  // of a buffer
    const double width = static_cast<double>(size_of(type)) / 4;
    EXPECT_NEAR(6 * layer + 2 * outer, all, 0.01 * all);
    const double weights[] = {type == ScalarType::fp32 ? 1.0 : 1.5, type == ScalarType::fp32 ? 1.0 : 0.5 + 1.0 / 8,
                              type == ScalarType::fp32 ? 1.0 : 0.5 + 1.0 / 8, 1.0 / 8 + width * slots};
    const double gradients[] = {1.0, 1.0, 1.0 / 8 + slots, 1.0 / 8 + slots};
    for (int stage = 0; stage <= 3; ++stage) {
      const MemoryPlan plan = sharded(stage, 8, type);
      EXPECT_NEAR(bytes(plan, MemoryKind::parameters) / all, weights[stage], 0.01) << stage;
      EXPECT_NEAR(bytes(plan, MemoryKind::gradients) / all, gradients[stage], 0.01) << stage;
      EXPECT_NEAR(bytes(plan, MemoryKind::optimizer) / all, stage == 0 ? 2.0 : 2.0 / 8, 0.01) << stage;
      EXPECT_EQ(bytes(plan, MemoryKind::activations), bytes(whole, MemoryKind::activations));
    }
  }
}

// Weights and both moments, over the ranks that share them out, of a rank and of its partner, twice.
TEST_F(PlanMemory, CopiesOnOtherHostsTakeFourShares) {
  EXPECT_EQ(plan_step(config_, {}).neighbour_bytes, 0u);
  config_.checkpoint.neighbour_every_steps = 5;
  const double state = 3.0 * 4.0 * (6 * (4 * 256 * 256 + 3 * 256 * 768) + 2 * 1024 * 256);
  for (const int dp : {1, 4}) {
    config_.parallel.dp = dp;
    config_.data.global_batch_size = 2 * dp;
    EXPECT_NEAR(static_cast<double>(plan_step(config_, {}).neighbour_bytes), 4 * (state / dp + (1 << 20)), 0.01 * state)
        << dp;
  }
}

}  // namespace
}  // namespace nanotron::trainer
