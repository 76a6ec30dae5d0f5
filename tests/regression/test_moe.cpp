// ranks: 1 2 3 4 6 8
// timeout: 600
// Mixtures of experts follow the serial run on every grid: experts over ep ranks, together with tensor, pipeline,
// context and data parallelism and every ZeRO stage; with and without a capacity; what they send is what was predicted.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>

#include "nanotron/deck/layer_kinds.hpp"
#include "support/comparison.hpp"
#include "support/expert_runs.hpp"
#include "support/sampling.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = test::compared_steps;
constexpr double tolerance = 1e-11;

std::string text(const deck::Config& c) {
  const deck::ParallelConfig& p = c.parallel;
  return fmt::format("dp {} tp {} pp {} cp {} ep {} tp_mode {} zero_stage {} zero_size {} schedule {} micro-batch {}",
                     p.dp, p.tp, p.pp, p.cp, p.ep, static_cast<int>(p.tp_mode), p.zero_stage, p.zero_size,
                     static_cast<int>(p.pp_schedule), c.data.micro_batch_size);
}

// The golden case that a model is, or changes.
deck::Config config_of(const std::string& model) {
  if (model == "gpt_oss") {
    deck::Config config = test::golden_config("mixtral");
    config.checkpoint.resume = "none";
    config.model.mlp_bias = config.model.moe.router_bias = true;
    config.model.hidden_act = deck::HiddenAct::swiglu_clamped;
    config.model.swiglu_limit = 0.05;
    return config;
  }
  if (model == "every_other") {
    deck::Config config = test::golden_config("qwen2_moe");
    config.checkpoint.resume = "none";
    config.model.num_hidden_layers = 4;
    config.model.moe.expert_layers = "1:1";
    return config;
  }
  if (model != "deepseek") return test::golden_config(model);
  deck::Config config = test::golden_config("qwen3_moe");
  config.checkpoint.resume = "none";
  config.model.num_hidden_layers = 3;
  deck::MoeConfig& moe = config.model.moe;
  moe.expert_layers = "!0";
  moe.router_score = deck::RouterScore::sigmoid;
  moe.n_group = moe.num_experts / 2;
  moe.topk_group = 2;
  moe.num_experts_per_tok = 2;
  moe.routed_scaling_factor = 1.5;
  moe.n_shared_experts = 2;
  moe.router_bias = true;
  moe.router_bias_update_rate = 0.05;
  moe.router_z_loss_coef = 0.0;
  return config;
}

class Moe : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    MPI_Comm_size(test::world(), &ranks_);
    MPI_Comm_rank(test::world(), &rank_);
    config_ = config_of(GetParam());
  }

  test::Numbers run(const deck::Config& config, std::int64_t until = steps, bool save = false) const {
    return test::run_training(config, test::world(), until, save);
  }

  // All of these ranks that the deck allows.
  std::vector<deck::Config> grids() const {
    std::vector<deck::Config> found;
    for (const deck::Config& c : test::grids_of(config_, {1, 2, 3}, {1, 2, 3, 4, 6, 8})) {
      if (c.parallel.ep == 1 && ranks_ > 4) continue;  // smaller ones will do
      if (test::is_legal(c)) found.push_back(c);
    }
    return found;
  }

  // The one with the most ranks that share experts.
  deck::Config widest() const {
    const std::vector<deck::Config> all = grids();
    return *std::ranges::max_element(all, {}, [](const deck::Config& c) { return c.parallel.ep; });
  }

  void expect_follows(const deck::Config& config, const test::Numbers& ours, const test::Numbers& reference) {
    const double worst = test::worst_loss_difference(ours, reference);
    EXPECT_LT(worst, tolerance);
    worst_ = test::larger(worst_, worst);
    ++runs_;
    EXPECT_EQ(ours.hashes, reference.hashes);
    for (std::size_t i = 0; i < reference.routers.size(); ++i) {
      EXPECT_NEAR(ours.routers[i].load_balance, reference.routers[i].load_balance,
                  tolerance * reference.routers[i].load_balance);
      EXPECT_NEAR(ours.routers[i].z, reference.routers[i].z, tolerance * reference.routers[i].z);
      EXPECT_EQ(ours.routers[i].dropped_share, reference.routers[i].dropped_share);
      EXPECT_EQ(ours.routers[i].busiest_share, reference.routers[i].busiest_share);
    }
    test::expect_predicted_traffic(config, ours);
    test::expect_same_state(ours.parameters, reference.parameters);
    test::expect_same_state(ours.exp_avg, reference.exp_avg);
    test::expect_same_state(ours.exp_avg_sq, reference.exp_avg_sq);
  }

  // Each, or a sample, against the serial run.
  void expect_follow(const std::vector<deck::Config>& all) {
    const test::Numbers reference = test::serial(config_, steps);
    for (const deck::Config& grid : test::sampled(all, ranks_ > 4 ? 2 : 4, test::world())) {
      SCOPED_TRACE(text(grid));
      expect_follows(grid, run(grid), reference);
    }
  }

  void TearDown() override {
    if (rank_ == 0 && runs_ > 0) {
      std::printf("%s on %d ranks, %d runs: worst relative difference %.1e\n", GetParam(), ranks_, runs_, worst_);
    }
  }

  int ranks_ = 1, rank_ = 0, runs_ = 0;
  double worst_ = 0.0;
  deck::Config config_;
};

TEST_P(Moe, GridsFollowTheSerialRun) {
  std::vector<deck::Config> all;
  for (deck::Config grid : grids()) {
    for (const auto mode : {deck::TpMode::all_reduce, deck::TpMode::reduce_scatter}) {
      if (grid.parallel.tp == 1 && mode == deck::TpMode::reduce_scatter) continue;
      grid.parallel.tp_mode = mode;
      all.push_back(grid);
    }
  }
  expect_follow(all);
}

TEST_P(Moe, ZeroFollowsTheSerialRun) {
  std::vector<deck::Config> all;
  for (deck::Config grid : grids()) {
    const std::int64_t replicas = grid.parallel.dp * grid.parallel.cp;
    if (replicas == 1 || grid.parallel.pp > 1) continue;
    for (const std::int64_t stage : {1, 2, 3}) {
      for (const std::int64_t size : {0, 2, 4}) {
        grid.parallel.zero_stage = stage;
        grid.parallel.zero_size = size;
        if (size != replicas && test::is_legal(grid)) all.push_back(grid);
      }
    }
  }
  expect_follow(all);
}

TEST_P(Moe, PipelineSchedulesFollowTheSerialRun) {
  if (ranks_ % 2 != 0) return;
  config_.model.num_hidden_layers = 4;
  config_.checkpoint.resume = "none";
  std::vector<deck::Config> all;
  for (deck::Config grid : grids()) {
    if (grid.parallel.pp != 2 || grid.parallel.tp > 2) continue;
    using enum deck::PpSchedule;
    for (const auto schedule : {gpipe, interleaved_1f1b, zero_bubble}) {
      grid.parallel.pp_schedule = schedule;
      all.push_back(grid);
    }
  }
  expect_follow(all);
}

// Capacities are of whole sequences: neither micro-batches nor ranks change what is dropped.
TEST_P(Moe, CapacityFollowsTheSerialRun) {
  config_.model.moe.capacity_factor = 0.9;
  const test::Numbers reference = test::serial(config_, steps);
  EXPECT_GT(reference.routers.front().dropped_share, 0.05);
  EXPECT_LT(reference.routers.front().dropped_share, 0.5);
  std::vector<deck::Config> all;
  for (deck::Config grid : grids()) {
    if (grid.parallel.pp > 1) continue;
    for (const std::int64_t sequences : {1, 2}) {
      grid.data.micro_batch_size = sequences;
      if (test::is_legal(grid)) all.push_back(grid);
    }
  }
  expect_follow(all);
  config_.model.moe.capacity_factor = 0.0;
  EXPECT_GT(std::abs(test::serial(config_, 1).losses[0] - reference.losses[0]), 1e-6) << "dropping changes something";
}

// k / L of the coefficient, L being the layers with experts of the whole model whatever the stage has of them.
TEST_P(Moe, TheAuxLossOfHuggingFaceIsThatOfALayerRescaled) {
  config_.checkpoint.resume = "none";
  const auto with = [](deck::Config c, deck::AuxLossScale scale, double coef) {
    c.model.moe.router_aux_loss_scale = scale;
    c.model.moe.router_aux_loss_coef = coef;
    return c;
  };
  using enum deck::AuxLossScale;
  const auto k = static_cast<double>(config_.model.moe.num_experts_per_tok);
  for (const std::int64_t layers : {4, 5}) {
    config_.model.num_hidden_layers = layers;
    const double coef = 0.3, of_layer = coef * k / static_cast<double>(deck::routed_layer_count(config_.model));
    const bool exact =
        std::has_single_bit(static_cast<std::uint64_t>(config_.model.moe.num_experts_per_tok)) && layers == 4;
    const test::Numbers reference = test::serial(with(config_, hugging_face, coef), steps);
    const test::Numbers unscaled = test::serial(with(config_, per_layer, coef), steps);
    if (of_layer != coef) {
      EXPECT_GT(test::worst_loss_difference(unscaled, reference), 1e-6) << "the scale changes something";
    }
    for (const deck::Config& grid : test::sampled(grids(), ranks_ > 4 ? 1 : 3, test::world())) {
      SCOPED_TRACE(text(grid));
      const test::Numbers theirs = run(with(grid, hugging_face, coef)), ours = run(with(grid, per_layer, of_layer));
      expect_follows(grid, theirs, reference);
      if (exact) {
        EXPECT_EQ(theirs.losses, ours.losses);
        EXPECT_EQ(theirs.grad_norms, ours.grad_norms);
        EXPECT_EQ(theirs.parameters, ours.parameters);
      } else {
        EXPECT_LT(test::worst_loss_difference(theirs, ours), 1e-13);
      }
    }
  }
}

TEST_P(Moe, RecomputationChangesNoBitAndASecondRunNeither) {
  deck::Config grid = widest();
  const test::Numbers one = run(grid, 4);
  for (const auto mode : {deck::Recompute::none, deck::Recompute::selective, deck::Recompute::full}) {
    grid.parallel.recompute = mode;
    const test::Numbers other = run(grid, 4);
    EXPECT_EQ(other.losses, one.losses);
    EXPECT_EQ(other.grad_norms, one.grad_norms);
    EXPECT_EQ(other.parameters, one.parameters);
    EXPECT_EQ(test::over_world(other.counted.expert_parallel), test::over_world(other.predicted.expert_parallel));
    EXPECT_EQ(other.counted.context_parallel, other.predicted.context_parallel);
  }
}

TEST_P(Moe, ResumesOnEveryGrid) {
  if (ranks_ != 2 && ranks_ != 4) return;  // files take their time
  const test::TemporaryFolder folder(test::world(), "moe");
  const test::Numbers whole = test::serial(config_, 12);
  std::vector<deck::Config> all = grids();
  std::erase_if(all, [](const deck::Config& c) { return c.parallel.pp > 1; });
  all.front().parallel.zero_stage = 1;
  all = test::sampled(all, 3, test::world());
  for (std::size_t i = 0; i < all.size(); ++i) {
    deck::Config first = all[i], second = all[(i + 1) % all.size()];
    SCOPED_TRACE(text(first) + " -> " + text(second));
    first.checkpoint.directory = second.checkpoint.directory = (folder.path() / std::to_string(i)).string();
    run(first, 6, true);
    second.checkpoint.resume = "auto";
    const test::Numbers resumed = run(second, 12);
    ASSERT_EQ(resumed.losses.size(), 6u);
    for (std::size_t s = 0; s < 6; ++s)
      EXPECT_NEAR(resumed.losses[s], whole.losses[s + 6], tolerance * whole.losses[s + 6]);
    test::expect_same_state(resumed.parameters, whole.parameters);
    test::expect_same_state(resumed.exp_avg, whole.exp_avg);
  }
}

TEST_P(Moe, TooLittleRoomIsAnErrorAndEnoughIsNot) {
  deck::Config grid = widest();
  if (grid.parallel.ep == 1) return;
  grid.model.moe.receive_factor = 0.05;
  try {
    run(grid, 1);
    FAIL() << "more rows than room";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::deck_error);
    EXPECT_NE(std::string(error.what()).find("receive_factor"), std::string::npos) << error.what();
  }
  grid.model.moe.receive_factor = 0.9 * static_cast<double>(grid.parallel.ep);
  EXPECT_LT(std::abs(run(grid, 1).losses[0] - test::serial(config_, 1).losses[0]), 1e-10);
}

TEST_P(Moe, InBf16TheLossStaysClose) {
  deck::Config grid = widest();
  const test::Numbers exact = test::serial(config_, steps);
  grid.precision.compute = ScalarType::bf16;
  const test::Numbers ours = run(grid);
  for (std::size_t i = 0; i < exact.losses.size(); ++i)
    EXPECT_NEAR(ours.losses[i], exact.losses[i], 0.02 * exact.losses[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(Models, Moe,
                         testing::ValuesIn(test::turn_of({"mixtral", "qwen2_moe", "qwen3_moe", "deepseek",
                                                          "every_other", "gpt_oss"})),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nanotron
