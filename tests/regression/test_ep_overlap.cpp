// ranks: 2 4 6 8
// timeout: 600
// parallel%ep_overlap: two halves of a micro-batch that take turns give, bit for bit, what two micro-batches of half
// the size give one after the other: on all grids, in all schedules, with every ZeRO stage and recomputation, and with
// 'layout'. They send what was predicted.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "nanotron/deck/later_tokens.hpp"
#include "support/comparison.hpp"
#include "support/expert_runs.hpp"
#include "support/sampling.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = 3;

// Of every kind: experts alone; with a shared one, gated or not; in some layers; with biases; on both sides of norms.
deck::Config model_of(const std::string& name) {
  deck::Config c = test::golden_config(name == "mixtral" || name == "qwen3_moe" ? name : "qwen2_moe");
  c.checkpoint.resume = "none";
  c.model.num_hidden_layers = 4;
  if (name == "shared") c.model.moe.expert_layers = "!0";
  if (name == "deepseek") {
    c.model.moe.shared_expert_intermediate_size = 0;
    c.model.moe.n_shared_experts = 1;
    c.model.moe.router_score = deck::RouterScore::sigmoid;
    c.model.moe.router_z_loss_coef = 0.0;
    c.model.moe.expert_layers = "1:1";
    c.model.num_nextn_predict_layers = 1;
  }
  if (name == "mixtral") {
    c.model.moe.capacity_factor = 0.9;
    c.model.mlp_bias = c.model.moe.router_bias = true;
    c.model.hidden_act = deck::HiddenAct::swiglu_clamped;
    c.model.swiglu_limit = 0.05;
  }
  if (name == "sandwich") c.model.norm_placement = deck::NormPlacement::sandwich;
  if (name == "parallel") c.model.parallel_residual = deck::ParallelResidual::two_norms;
  return c;
}

std::string text(const deck::Config& c) {
  const deck::ParallelConfig& p = c.parallel;
  return fmt::format("dp {} tp {} pp {} cp {} ep {} tp_mode {} zero {} schedule {} recompute {} ({}) micro-batch {}",
                     p.dp, p.tp, p.pp, p.cp, p.ep, static_cast<int>(p.tp_mode), p.zero_stage,
                     static_cast<int>(p.pp_schedule), static_cast<int>(p.recompute), p.recompute_layers,
                     c.data.micro_batch_size);
}

class EpOverlap : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    config_ = model_of(GetParam());
    config_.data.global_batch_size = 4 * test::ranks_of_world();
  }

  static deck::Config overlapped(deck::Config c) {
    c.parallel.ep_overlap = true;
    c.data.micro_batch_size *= 2;
    return c;
  }

  // Grids with ep > 1 that the deck allows.
  std::vector<deck::Config> grids() const {
    std::vector<deck::Config> found = test::grids_of(config_, {1, 2}, {2, 4});
    std::erase_if(found, [](const deck::Config& c) { return !test::is_legal(overlapped(c)); });
    return found;
  }

  // Options of a grid, one of each.
  std::vector<deck::Config> all() const {
    std::vector<deck::Config> found;
    for (const deck::Config& grid : grids()) {
      std::size_t i = found.size();
      const auto next = [&](std::size_t n) { return i++ % n; };
      for (const auto schedule : {deck::PpSchedule::one_f_one_b, deck::PpSchedule::gpipe,
                                  deck::PpSchedule::interleaved_1f1b, deck::PpSchedule::zero_bubble}) {
        for (const auto recompute : {deck::Recompute::none, deck::Recompute::selective, deck::Recompute::full}) {
          for (const std::int64_t zero : {0, 1, 2, 3}) {
            deck::Config c = grid;
            if (c.parallel.pp == 1 && schedule != deck::PpSchedule::one_f_one_b) continue;
            if (c.parallel.dp * c.parallel.cp == 1 && zero > 0) continue;
            c.parallel.pp_schedule = schedule;
            c.parallel.recompute = recompute;
            c.parallel.zero_stage = zero;
            c.parallel.recompute_layers = next(2) == 0 ? "all" : "1:1";
            c.parallel.tp_mode = next(2) == 0 ? deck::TpMode::all_reduce : deck::TpMode::reduce_scatter;
            c.parallel.tp_overlap_chunks = c.parallel.tp_mode == deck::TpMode::reduce_scatter ? 2 : 1;
            c.data.micro_batch_size = static_cast<std::int64_t>(1 + next(2));
            if (test::is_legal(overlapped(c))) found.push_back(c);
          }
        }
      }
    }
    return found;
  }

  // With 'layout' the rows of experts are summed over tensor-parallel ranks: as many as the routing says.
  static void expect_predicted(const deck::Config& config, test::Numbers ours) {
    EXPECT_EQ(test::over_world(ours.counted.tensor_parallel), test::over_world(ours.predicted.tensor_parallel));
    ours.counted.tensor_parallel = ours.predicted.tensor_parallel;
    test::expect_predicted_traffic(config, ours);
  }

  void expect_same(const deck::Config& config) const {
    SCOPED_TRACE(text(config));
    const test::Numbers apart = test::run_training(config, test::world(), steps);
    const test::Numbers turns = test::run_training(overlapped(config), test::world(), steps);
    EXPECT_EQ(turns.hashes, apart.hashes);
    if (deck::embeds_at_end(config.model)) {  // the addends of its gradient have another order
      EXPECT_LT(test::worst_loss_difference(turns, apart), 1e-11);
      test::expect_same_state(turns.parameters, apart.parameters);
    } else {
      EXPECT_EQ(turns.losses, apart.losses);
      EXPECT_EQ(turns.grad_norms, apart.grad_norms);
      EXPECT_EQ(turns.parameters, apart.parameters);
      EXPECT_EQ(turns.exp_avg_sq, apart.exp_avg_sq);
    }
    for (std::size_t i = 0; i < apart.routers.size(); ++i) {
      EXPECT_NEAR(turns.routers[i].load_balance, apart.routers[i].load_balance, 1e-11);
      EXPECT_EQ(turns.routers[i].dropped_share, apart.routers[i].dropped_share);
    }
    expect_predicted(config, turns);
    EXPECT_EQ(test::over_world(turns.counted.expert_parallel), test::over_world(apart.counted.expert_parallel));
  }

  deck::Config config_;
};

TEST_P(EpOverlap, TwoHalvesInTurnsGiveTheBitsOfTwoMicroBatches) {
  for (const deck::Config& config : test::sampled(all(), 4, test::world())) expect_same(config);
}

TEST_P(EpOverlap, TheSameWithLayout) {
  std::vector<deck::Config> found;
  for (deck::Config c : grids()) {
    c.precision.reproducible = deck::Reproducible::layout;
    c.data.micro_batch_size = 1;
    if (test::is_legal(overlapped(c))) found.push_back(c);
  }
  if (found.empty()) return;
  for (const deck::Config& config : test::sampled(found, 1, test::world())) expect_same(config);
}

INSTANTIATE_TEST_SUITE_P(Models, EpOverlap,
                         testing::ValuesIn(test::turn_of({"mixtral", "qwen2_moe", "shared", "deepseek", "sandwich",
                                                          "parallel", "qwen3_moe"})),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nanotron
