// ranks: 2 4 6 8
// timeout: 600
// parallel%ep_overlap: two halves of a micro-batch that take turns give, bit for bit, what two micro-batches of half
// the size give one after the other: on all grids, in all schedules, with every ZeRO stage and recomputation, and with
// 'layout'. They send what was predicted.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "support/comparison.hpp"
#include "support/sampling.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

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

std::uint64_t over_world(std::uint64_t bytes) {
  MPI_Allreduce(MPI_IN_PLACE, &bytes, 1, MPI_UINT64_T, MPI_SUM, test::world());
  return bytes;
}

class EpOverlap : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    MPI_Comm_size(test::world(), &ranks_);
    config_ = model_of(GetParam());
    config_.data.global_batch_size = 4 * ranks_;
  }

  bool is_legal(deck::Config config) const {
    try {
      trainer::resolve(config, ranks_);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  static deck::Config overlapped(deck::Config c) {
    c.parallel.ep_overlap = true;
    c.data.micro_batch_size *= 2;
    return c;
  }

  // f(a grid with ep > 1), for all of these ranks that the deck allows.
  template <class F>
  void for_each_grid(const F& f) const {
    for (const std::int64_t tp : {1, 2}) {
      for (const std::int64_t pp : {1, 2}) {
        for (const std::int64_t cp : {1, 2}) {
          for (const std::int64_t ep : {2, 4}) {
            deck::Config c = config_;
            if (ranks_ % (tp * pp * cp) != 0) continue;
            c.parallel.dp = ranks_ / (tp * pp * cp);
            c.parallel.tp = tp;
            c.parallel.pp = pp;
            c.parallel.cp = cp;
            c.parallel.ep = ep;
            if (is_legal(overlapped(c))) f(c);
          }
        }
      }
    }
  }

  // Options of a grid, one of each.
  std::vector<deck::Config> all() const {
    std::vector<deck::Config> found;
    for_each_grid([&](const deck::Config& grid) {
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
            if (is_legal(overlapped(c))) found.push_back(c);
          }
        }
      }
    });
    return found;
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
    EXPECT_EQ(over_world(turns.counted.tensor_parallel), over_world(turns.predicted.tensor_parallel));
    EXPECT_EQ(turns.counted.context_parallel, turns.predicted.context_parallel);
    EXPECT_EQ(turns.counted.pipeline, turns.predicted.pipeline);
    EXPECT_EQ(turns.counted.data_parallel, turns.predicted.data_parallel);
    const std::uint64_t sent = over_world(turns.counted.expert_parallel);
    EXPECT_EQ(sent, over_world(apart.counted.expert_parallel));
    if (config.model.moe.capacity_factor == 0.0) EXPECT_EQ(sent, over_world(turns.predicted.expert_parallel));
  }

  int ranks_ = 1;
  deck::Config config_;
};

TEST_P(EpOverlap, TwoHalvesInTurnsGiveTheBitsOfTwoMicroBatches) {
  for (const deck::Config& config : test::sampled(all(), 4, test::world())) expect_same(config);
}

TEST_P(EpOverlap, TheSameWithLayout) {
  std::vector<deck::Config> found;
  for_each_grid([&](deck::Config c) {
    c.precision.reproducible = deck::Reproducible::layout;
    c.data.micro_batch_size = 1;
    if (is_legal(overlapped(c))) found.push_back(c);
  });
  if (found.empty()) return;
  for (const deck::Config& config : test::sampled(found, 1, test::world())) expect_same(config);
}

INSTANTIATE_TEST_SUITE_P(Models, EpOverlap,
                         testing::ValuesIn(test::turn_of({"mixtral", "qwen2_moe", "shared", "deepseek", "sandwich",
                                                          "parallel", "qwen3_moe"})),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nanotron
