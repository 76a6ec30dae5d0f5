// ranks: 1 2 3 4 6
// timeout: 600
// Optimizers of the table but AdamW and Muon: 20 steps beside their plain PyTorch
// (tests/golden/make_optimizer_golden.py), on every kind of grid, resharded in the middle, interrupted, with states in
// bf16.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "support/comparison.hpp"
#include "support/test_folder.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t all_steps = 20;
constexpr double tolerance = 1e-12;  // of losses and norms, relative

struct Grid {
  std::string model;
  std::vector<std::string> keys;  // of &parallel
};

std::vector<Grid> grids_of(int ranks) {
  switch (ranks) {
    case 2:
      return {{"llama", {"tp=2"}},
              {"qwen3", {"tp=2", "tp_mode=reduce_scatter"}},
              {"qwen3", {"dp=2", "zero_stage=1"}},
              {"llama", {"dp=2", "zero_stage=2"}},
              {"qwen3", {"dp=2", "zero_stage=3"}},
              {"llama", {"pp=2"}},
              {"qwen3", {"cp=2", "zero_stage=1"}},
              {"mixtral", {"dp=2", "ep=2"}}};
    case 3:
      return {{"llama", {"tp=3"}}, {"qwen3", {"dp=1", "pp=3"}}};
    case 4:
      return {{"qwen3", {"tp=2", "dp=2", "zero_stage=3"}},
              {"llama", {"dp=4", "zero_stage=3", "zero_size=2"}},
              {"qwen3", {"tp=2", "pp=2"}},
              {"mixtral", {"dp=4", "ep=2", "zero_stage=2"}}};
    case 6:
      return {{"qwen3", {"tp=3", "dp=2", "zero_stage=2"}}, {"qwen2", {"tp=3", "dp=2", "tp_mode=reduce_scatter"}}};
    default:
      return {};
  }
}

class Optimizers : public testing::TestWithParam<std::string> {
 protected:
  Optimizers() : golden_(nlohmann::json::parse(std::ifstream(file()))) { MPI_Comm_size(test::world(), &ranks_); }

  static std::string file() { return test::test_folder() / "golden" / "optimizers" / (GetParam() + ".json"); }
  static bool has_bf16_states() { return GetParam() != "schedule_free_adamw"; }
  // The keys of the golden run, and these.
  deck::Config config_of(const std::string& model, const std::vector<std::string>& parallel = {}) const {
    std::vector<std::string> set{"optimizer.name=" + GetParam(), "parallel.dp=1"};
    for (const auto& [key, value] : golden_.at("keys").items()) set.push_back("optimizer." + key + "=" + value.dump());
    for (const std::string& key : parallel) set.push_back("parallel." + key);
    if (GetParam() == "sophia" && model == "mixtral") {  // whose curvature is that of cross-entropy alone
      for (const char* key : {"aux", "z"}) set.push_back(fmt::format("moe.router_{}_loss_coef=0", key));
    }
    return test::golden_config(model, set);
  }
  static void expect_same(const test::Numbers& ours, const test::Numbers& reference) {
    EXPECT_LT(test::worst_loss_difference(ours, reference), 1e-11);
    test::expect_same_state(ours.parameters, reference.parameters);
    ASSERT_EQ(ours.states.size(), reference.states.size());
    for (const auto& [name, state] : reference.states) {
      SCOPED_TRACE(name);
      if (!state.empty()) test::expect_same_state(ours.states.at(name), state);
    }
  }

  nlohmann::json golden_;
  int ranks_ = 1;
};

double l2(const std::vector<double>& v) { return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0)); }

// golden: {name: {"sum": s, "l2": n}}
void expect_state(const test::Tensors& ours, const nlohmann::json& golden) {
  ASSERT_EQ(ours.size(), golden.size());
  for (const auto& [name, tensor] : ours) {
    const double norm = golden.at(name).at("l2"), sum = golden.at(name).at("sum");
    const double root = std::sqrt(static_cast<double>(tensor.size()));
    EXPECT_NEAR(l2(tensor), norm, 1e-11 * norm) << name;
    EXPECT_NEAR(std::accumulate(tensor.begin(), tensor.end(), 0.0), sum, 1e-11 * norm * root) << name;
  }
}

void expect_golden(const test::Numbers& ours, const nlohmann::json& golden) {
  const std::vector<double> losses = golden.at("losses"), norms = golden.at("grad_norms");
  const std::size_t first = losses.size() - ours.losses.size();
  const std::vector<double> last_losses(losses.begin() + static_cast<std::ptrdiff_t>(first), losses.end());
  const std::vector<double> last_norms(norms.begin() + static_cast<std::ptrdiff_t>(first), norms.end());
  const double loss = test::largest_relative_difference(ours.losses, last_losses);
  const double norm = test::largest_relative_difference(ours.grad_norms, last_norms);
  std::printf("worst relative difference of a loss %.1e, of a gradient norm %.1e\n", loss, norm);
  EXPECT_LT(loss, tolerance);
  EXPECT_LT(norm, tolerance * 10);
  EXPECT_LT(losses.back(), 0.99 * losses.front()) << "a golden that learns nothing proves nothing";
  expect_state(ours.parameters, golden.at("parameters"));
  for (const auto& [name, state] : golden.at("states").items()) {
    SCOPED_TRACE(name);
    expect_state(ours.states.at(name), state);
  }
}

TEST_P(Optimizers, TwentyStepsFollowPyTorch) {
  if (ranks_ > 1) return;
  for (const auto& [model, golden] : golden_.at("fp64").items()) {
    SCOPED_TRACE(model);
    expect_golden(test::run_training(config_of(model), test::world(), all_steps), golden);
  }
}

TEST_P(Optimizers, FollowTheSerialRunOnEveryGrid) {
  double worst = 0.0;
  for (const Grid& grid : grids_of(ranks_)) {
    SCOPED_TRACE(fmt::format("{} {}", grid.model, fmt::join(grid.keys, " ")));
    const test::Numbers reference = test::serial(config_of(grid.model), test::compared_steps);
    const test::Numbers ours =
        test::run_training(config_of(grid.model, grid.keys), test::world(), test::compared_steps);
    expect_same(ours, reference);
    worst = test::larger(worst, test::worst_loss_difference(ours, reference));
    EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel);
    EXPECT_EQ(ours.counted.data_parallel, ours.predicted.data_parallel);
  }
  int rank = 0;
  MPI_Comm_rank(test::world(), &rank);
  if (rank == 0) std::printf("%d ranks: worst relative difference %.1e\n", ranks_, worst);
}

TEST_P(Optimizers, ReshardedInTheMiddleFollowPyTorch) {
  if (ranks_ != 4) return;
  const std::vector<std::vector<std::string>> grids{
      {"tp=4"}, {"tp=2", "dp=2", "zero_stage=2"}, {"dp=4", "zero_stage=3"}, {"pp=2", "dp=2", "zero_stage=1"}};
  for (std::size_t i = 0; i < grids.size(); ++i) {
    const auto &before = grids[i], &after = grids[(i + 1) % grids.size()];
    SCOPED_TRACE(fmt::format("{} -> {}", fmt::join(before, " "), fmt::join(after, " ")));
    const test::TemporaryFolder folder(test::world(), "optimizer_grids");
    deck::Config config = config_of("qwen3", before);
    config.checkpoint.directory = folder.path().string();
    test::run_training(config, test::world(), all_steps / 2, true);
    config = config_of("qwen3", after);
    config.checkpoint.directory = folder.path().string();
    config.checkpoint.resume = "auto";
    expect_golden(test::run_training(config, test::world(), all_steps), golden_.at("fp64").at("qwen3"));
  }
}

// In fp64; and in bf16 with states in bf16, where they may be.
TEST_P(Optimizers, InterruptedContinueBitForBit) {
  if (ranks_ != 1 && ranks_ != 4) return;
  for (const ScalarType type : {ScalarType::fp64, ScalarType::bf16}) {
    SCOPED_TRACE(name_of(type));
    const test::TemporaryFolder folder(test::world(), "optimizer_resume");
    deck::Config config = config_of(
        "qwen3", ranks_ == 4 ? std::vector<std::string>{"tp=2", "dp=2", "zero_stage=3"} : std::vector<std::string>{});
    config.precision.compute = type;
    if (type == ScalarType::bf16 && has_bf16_states()) config.precision.moments = deck::MomentType::bf16;
    config.checkpoint.directory = folder.path().string();
    const test::Numbers all = test::run_training(config, test::world(), 8);
    test::run_training(config, test::world(), 4, true);
    config.checkpoint.resume = "auto";
    const test::Numbers resumed = test::run_training(config, test::world(), 8);
    EXPECT_EQ(resumed.losses, std::vector<double>(all.losses.begin() + 4, all.losses.end()));
    EXPECT_EQ(resumed.adam_steps, 8);
    EXPECT_EQ(resumed.parameters, all.parameters);
    EXPECT_EQ(resumed.states, all.states);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Optimizers, testing::Values("ademamix", "lion", "schedule_free_adamw", "sophia", "soap"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace nanotron
