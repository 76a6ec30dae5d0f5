// ranks: 1 2 3 4 6
// timeout: 600
// QK-clip: 20 steps beside plain PyTorch (tests/golden/make_qk_clip_golden.py), on every kind of grid, interrupted; the
// scores after it; what counts in the maxima.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "support/comparison.hpp"
#include "support/device_values.hpp"
#include "support/test_folder.hpp"
#include "support/trainer_run.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

using Keys = std::vector<std::string>;

constexpr std::int64_t all_steps = 20;
constexpr double tau = 0.5;

const Keys latent{"model.kv_lora_rank=12",       "model.q_lora_rank=10",       "model.qk_nope_head_dim=6",
                  "model.qk_rope_head_dim=4",    "model.v_head_dim=8",         "model.head_dim=0",
                  "model.num_key_value_heads=0", "model.initializer_range=0.5"};
const Keys latent_queries_whole{"model.kv_lora_rank=9",       "model.qk_nope_head_dim=5", "model.qk_rope_head_dim=4",
                                "model.v_head_dim=9",         "model.head_dim=0",         "model.num_key_value_heads=0",
                                "model.initializer_range=0.5"};

struct Case {
  std::string model;
  Keys set{};  // of the serial run too
};
const Case llama{"llama"}, biases{"qwen2"}, adamw{"qwen2", {"optimizer.name=adamw"}}, experts{"mixtral"},
    mla{"llama", latent}, mla_whole{"llama", latent_queries_whole},
    window{"llama", {"model.sliding_window=5", "model.initializer_range=0.5"}},
    deep{"llama", {"model.num_hidden_layers=4", "model.initializer_range=0.5"}},
    later{"llama", {"model.num_nextn_predict_layers=1", "optimizer.name=adamw", "model.initializer_range=0.5"}};

class QkClip : public testing::Test {
 protected:
  QkClip() { MPI_Comm_size(test::world(), &ranks_); }

  static deck::Config config_of(const Case& c, const Keys& parallel = {}) {
    Keys set{"optimizer.name=muon", "parallel.dp=1", fmt::format("optimizer.qk_clip={}", tau)};
    set.insert(set.end(), c.set.begin(), c.set.end());
    for (const std::string& key : parallel) set.push_back("parallel." + key);
    deck::Config config = test::golden_config(c.model, set);
    if (!c.set.empty() && c.set != adamw.set) config.checkpoint.resume = "none";
    return config;
  }
  static std::vector<std::pair<Case, Keys>> grids_of(int ranks) {
    switch (ranks) {
      case 2:
        return {{llama, {"tp=2"}},
                {biases, {"tp=2", "tp_mode=reduce_scatter"}},
                {biases, {"dp=2", "zero_stage=1"}},
                {llama, {"dp=2", "zero_stage=2"}},
                {mla, {"dp=2", "zero_stage=3"}},
                {mla, {"tp=2"}},
                {mla_whole, {"tp=2"}},
                {llama, {"pp=2"}},
                {deep, {"pp=2", "pp_schedule=zero_bubble"}},
                {llama, {"cp=2", "zero_stage=1", "recompute=full"}},
                {window, {"cp=2", "cp_mode=all_to_all"}},
                {experts, {"dp=2", "ep=2"}},
                {later, {"pp=2"}},
                {adamw, {"dp=2", "zero_stage=3"}}};
      case 3:
        return {{llama, {"tp=3"}}, {biases, {"cp=3"}}};
      case 4:
        return {{biases, {"tp=4"}},
                {llama, {"tp=2", "dp=2", "zero_stage=3"}},
                {llama, {"dp=4", "zero_stage=3", "zero_size=2"}},
                {mla, {"tp=2", "pp=2"}},
                {later, {"tp=2", "cp=2"}},
                {adamw, {"tp=4", "tp_mode=reduce_scatter"}}};
      case 6:
        return {{llama, {"tp=3", "dp=2", "zero_stage=2"}}, {biases, {"tp=3", "cp=2", "zero_stage=1"}}};
      default:
        return {};
    }
  }
  static void expect_same(const test::Numbers& ours, const test::Numbers& reference) {
    EXPECT_LT(test::worst_loss_difference(ours, reference), 1e-11);
    EXPECT_LT(test::largest_relative_difference(ours.max_scores, reference.max_scores), 1e-11);
    EXPECT_EQ(ours.clipped_heads, reference.clipped_heads);
    test::expect_same_state(ours.parameters, reference.parameters);
  }

  int ranks_ = 1;
};

double l2(const std::vector<double>& v) { return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0)); }

TEST_F(QkClip, FollowsPyTorch) {
  if (ranks_ > 1) return;
  const auto all = nlohmann::json::parse(std::ifstream(test::test_folder() / "golden" / "qk_clip.json"));
  for (const nlohmann::json& golden : all.at("fp64")) {
    const std::string model = golden.at("model"), optimizer = golden.at("optimizer");
    SCOPED_TRACE(model + " " + optimizer);
    const deck::Config config = test::golden_config(
        model,
        {"optimizer.name=" + optimizer, fmt::format("optimizer.qk_clip={}", golden.at("qk_clip").get<double>())});
    const test::Numbers ours = test::run_training(config, test::world(), all_steps);
    const std::vector<double> losses = golden.at("losses"), norms = golden.at("grad_norms"),
                              scores = golden.at("max_scores"), clipped = golden.at("clipped_heads");
    const double loss = test::largest_relative_difference(ours.losses, losses);
    const double norm = test::largest_relative_difference(ours.grad_norms, norms);
    const double score = test::largest_relative_difference(ours.max_scores, scores);
    std::printf("worst relative difference of a loss %.1e, of a gradient norm %.1e, of a score %.1e\n", loss, norm,
                score);
    EXPECT_LT(loss, 1e-12);
    EXPECT_LT(norm, 1e-11);
    EXPECT_LT(score, 1e-12);
    EXPECT_EQ(ours.clipped_heads, clipped);
    EXPECT_GE(std::ranges::count_if(clipped, [](double heads) { return heads > 0.0; }), 5);
    for (const auto& [name, tensor] : ours.parameters) {
      const double size = golden.at("parameters").at(name).at("l2"), sum = golden.at("parameters").at(name).at("sum");
      EXPECT_NEAR(l2(tensor), size, 1e-11 * size) << name;
      EXPECT_NEAR(std::accumulate(tensor.begin(), tensor.end(), 0.0), sum,
                  1e-11 * size * std::sqrt(static_cast<double>(tensor.size())))
          << name;
    }
  }
}

TEST_F(QkClip, FollowsTheSerialRunOnEveryGrid) {
  double worst = 0.0;
  for (const auto& [c, keys] : grids_of(ranks_)) {
    SCOPED_TRACE(fmt::format("{} {} {}", c.model, fmt::join(c.set, " "), fmt::join(keys, " ")));
    const test::Numbers reference = test::serial(config_of(c), test::compared_steps);
    const test::Numbers ours = test::run_training(config_of(c, keys), test::world(), test::compared_steps);
    expect_same(ours, reference);
    EXPECT_GT(*std::ranges::max_element(ours.clipped_heads), 0.0);
    worst = test::larger(worst, test::worst_loss_difference(ours, reference));
    EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel);
    EXPECT_EQ(ours.counted.data_parallel, ours.predicted.data_parallel);
  }
  int rank = 0;
  MPI_Comm_rank(test::world(), &rank);
  if (rank == 0) std::printf("%d ranks: worst relative difference %.1e\n", ranks_, worst);
}

TEST_F(QkClip, InterruptedContinuesBitForBit) {
  if (ranks_ != 1 && ranks_ != 4) return;
  for (const ScalarType type : {ScalarType::fp64, ScalarType::bf16}) {
    SCOPED_TRACE(name_of(type));
    const test::TemporaryFolder folder(test::world(), "qk_clip");
    deck::Config config = config_of(llama, ranks_ == 4 ? Keys{"tp=2", "dp=2", "zero_stage=3"} : Keys{});
    config.precision.compute = type;
    config.checkpoint.directory = folder.path().string();
    const test::Numbers all = test::run_training(config, test::world(), 8);
    test::run_training(config, test::world(), 4, true);
    config.checkpoint.resume = "auto";
    const test::Numbers resumed = test::run_training(config, test::world(), 8);
    EXPECT_EQ(resumed.losses, std::vector<double>(all.losses.begin() + 4, all.losses.end()));
    EXPECT_EQ(resumed.max_scores, std::vector<double>(all.max_scores.begin() + 4, all.max_scores.end()));
    EXPECT_EQ(resumed.parameters, all.parameters);
    EXPECT_EQ(resumed.states, all.states);
  }
}

// One layer, which the optimizer does not change, sees the same tokens in each step: gamma scales all of a head's
// scores, those of latent attention's two parts too. A query head that shares its key goes down with the largest one.
TEST_F(QkClip, BringsTheLargestScoresOfTheSameTokensToItsValue) {
  if (ranks_ > 2) return;
  const test::TemporaryFolder folder(test::world(), "qk_clip_tokens");
  int rank = 0;
  MPI_Comm_rank(test::world(), &rank);
  if (rank == 0) test::write_tokens(folder.path() / "tokens.h5", 8 * 16 + 1, 131);
  MPI_Barrier(test::world());
  for (const Case& c : {llama, mla, mla_whole}) {
    for (const char* type : {"fp64", "bf16"}) {
      SCOPED_TRACE(fmt::format("{} {} {}", c.model, fmt::join(c.set, " "), type));
      Keys set = c.set;
      for (const char* key : {"model.num_hidden_layers=1", "model.initializer_range=0.5", "optimizer.learning_rate=0"})
        set.push_back(key);
      set.push_back(std::string("precision.compute=") + type);
      deck::Config config = config_of({c.model, set}, ranks_ == 2 ? Keys{"tp=2"} : Keys{});
      config.data.path = (folder.path() / "tokens.h5").string();
      trainer::resolve(config, ranks_);
      with_scalar_type(config.precision.compute, [&]<class T>(std::type_identity<T>) {
        test::TrainerRun<T> run(config, test::world());
        const auto scores_of_step = [&] {
          run->train_step();
          const Matrix<double>& scores = run->state().score_maxima.of_step();
          return test::values_of(Vector<double>(scores.data(), scores.size()));
        };
        const std::vector<double> first = scores_of_step(), second = scores_of_step();
        const auto heads = static_cast<std::size_t>(config.model.num_attention_heads);
        const std::size_t group = heads / static_cast<std::size_t>(config.model.num_key_value_heads);
        ASSERT_EQ(first.size(), heads);
        int clipped = 0;
        for (std::size_t h = 0; h < heads; ++h) {
          const auto of_group = first.begin() + static_cast<std::ptrdiff_t>(h / group * group);
          const double top = *std::max_element(of_group, of_group + static_cast<std::ptrdiff_t>(group));
          const double gamma = std::min(1.0, tau / top);
          clipped += gamma < 1.0 ? 1 : 0;
          EXPECT_NEAR(second[h], gamma * first[h], (std::is_same_v<T, double> ? 1e-14 : 0.02) * std::abs(first[h]));
        }
        EXPECT_GT(clipped, 0);
      });
    }
  }
}

// Neither a validation nor what backward computes again counts.
TEST_F(QkClip, CountsTheScoresOfTrainingOnce) {
  if (ranks_ > 1) return;
  const test::Numbers expected = test::serial(config_of(llama), 3);
  deck::Config config = config_of(llama, {"recompute=full"});
  EXPECT_EQ(test::serial(config, 3).max_scores, expected.max_scores);
  config.data.validation_fraction = 0.3;
  trainer::resolve(config, 1);
  const auto scores = [&](bool validates) {
    test::TrainerRun<double> run(config, test::world());
    run->resume();
    std::vector<double> all;
    for (int step = 0; step < 3; ++step) {
      all.push_back(run->train_step().statistics.front());
      if (validates) run->validate();
    }
    return all;
  };
  EXPECT_EQ(scores(true), scores(false));
}

// Pairs, z loss or later tokens, which a deck has not together, and experts.
TEST_F(QkClip, HasColumnsBesideAllOthers) {
  deck::Config config = config_of(experts);
  config.optimizer.z_loss_coefficient = config.preference.beta = 0.1;
  config.model.num_nextn_predict_layers = 1;
  const std::vector<io::ExtraColumn> columns = trainer::statistics_columns(config);
  EXPECT_LE(columns.size(), io::ExtraValues{}.size());
  EXPECT_STREQ(columns.back().name, "clipped_heads");
}

}  // namespace
}  // namespace nanotron
