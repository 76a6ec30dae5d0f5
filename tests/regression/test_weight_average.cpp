// ranks: 1 2 4
// timeout: 600
// The exponential moving average of the weights: beside PyTorch's (tests/golden/make_ema_golden.py) on all grids of the
// ranks, beside plain loops over the weights of each step, in checkpoints, and from one without an average.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/device_values.hpp"
#include "support/drawn_decks.hpp"
#include "support/golden.hpp"
#include "support/reference/weight_average.hpp"
#include "support/test_folder.hpp"
#include "support/trainer_run.hpp"

namespace nanotron {
namespace {

using Keys = std::vector<std::string>;

class WeightAverage : public testing::Test {
 protected:
  void SetUp() override { MPI_Comm_size(test::world(), &ranks_); }

  // Those of these ranks that the deck allows.
  static std::vector<Keys> grids() {
    return {{},
            {"parallel.tp=2"},
            {"parallel.zero_stage=1"},
            {"parallel.zero_stage=2", "parallel.zero_size=2"},
            {"parallel.zero_stage=3"},
            {"parallel.pp=2", "data.micro_batch_size=1"},
            {"parallel.cp=2"},
            {"parallel.ep=2"},
            {"parallel.tp=2", "parallel.zero_stage=1", "optimizer.name=muon"},
            {"parallel.zero_stage=1", "optimizer.name=lion", "optimizer.qk_clip=0.3"}};
  }
  std::optional<deck::Config> config_of(const std::string& golden, const Keys& grid, double decay) const {
    Keys set{fmt::format("optimizer.ema_decay={}", decay), "precision.compute=fp64"};
    const deck::Config base = test::golden_config(golden);
    set.push_back("data.path='" + base.data.path + "'");
    set.push_back("checkpoint.resume='" + base.checkpoint.resume + "'");
    set.insert(set.end(), grid.begin(), grid.end());
    return test::deck_if_legal(golden, set, ranks_);
  }

  int ranks_ = 1;
};

double l2(const std::vector<double>& v) { return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0)); }

TEST_F(WeightAverage, IsThatOfPytorch) {
  std::ifstream file(test::test_folder() / "golden" / "ema.json");
  const nlohmann::json all = nlohmann::json::parse(file);
  double worst = 0.0;
  int tried = 0;
  for (const char* name : {"llama", "qwen2", "qwen3", "mixtral"}) {
    const nlohmann::json& golden = all.at("fp64").at(name);
    for (const Keys& grid : grids()) {
      const auto config = config_of(name, grid, all.at("ema_decay"));
      if (!config || config->optimizer.name != "adamw") continue;
      SCOPED_TRACE(std::string(name) + " " + testing::PrintToString(grid));
      const test::Numbers ours = test::run_training(*config, test::world(), 20);
      ASSERT_EQ(ours.ema.size(), golden.size());
      for (const auto& [tensor, values] : ours.ema) {
        if (test::without_gradient(name).contains(tensor)) continue;
        const double norm = golden.at(tensor).at("l2"), sum = golden.at(tensor).at("sum");
        const double off = test::larger(std::abs(l2(values) - norm) / norm,
                                        std::abs(std::accumulate(values.begin(), values.end(), 0.0) - sum) /
                                            (norm * std::sqrt(static_cast<double>(values.size()))));
        EXPECT_LT(off, 1e-12) << tensor;
        worst = test::larger(worst, off);
      }
      ++tried;
    }
  }
  EXPECT_GE(tried, ranks_ == 1 ? 4 : 12);
  std::printf("worst relative difference of a sum or norm of the average: %.2e in %d runs\n", worst, tried);
}

// Of the elements that this rank updates, step by step.
template <class T>
void expect_plain_loops(const deck::Config& config) {
  using M = master_t<T>;
  test::TrainerRun<T> run(config, test::world());
  run->resume();
  trainer::TrainingState<T>& state = run->state();
  const auto parts = optim::update_parts(state.model.table(), state.model.parameters().layouts);
  const auto weights = [&] {
    const std::vector<M> master = test::values_of(run->state().model.parameters().master);
    std::vector<M> updated;
    for (const optim::UpdatePart& part : parts)
      updated.insert(updated.end(), master.begin() + part.parameters, master.begin() + part.parameters + part.size());
    return updated;
  };
  const auto average = [&] {
    const std::vector<M> all = test::values_of(std::get<Vector<M>>(state.average.states().front().values));
    std::vector<M> updated;
    for (const optim::UpdatePart& part : parts)
      updated.insert(updated.end(), all.begin() + part.moments, all.begin() + part.moments + part.size());
    return updated;
  };
  std::vector<M> expected = weights();
  EXPECT_EQ(average(), expected) << "it begins with the weights";
  double worst = 0.0;
  for (int step = 0; step < 20; ++step) {
    run->train_step();
    reference::weight_average(expected, weights(), config.optimizer.ema_decay);
    const std::vector<M> now = average();
    for (std::size_t i = 0; i < now.size(); ++i)
      worst = test::larger(worst, std::abs(static_cast<double>(now[i]) - static_cast<double>(expected[i])));
  }
  EXPECT_LT(worst, (std::is_same_v<M, double> ? 1e-15 : 1e-6));
}

TEST_F(WeightAverage, FollowsTheWeightsInPlainLoops) {
  int tried = 0;
  for (const Keys& grid : grids()) {
    for (const char* type : {"fp64", "bf16"}) {
      Keys set = grid;
      set.push_back(std::string("precision.compute=") + type);
      const auto config = config_of("llama", set, 0.9);
      if (!config) continue;
      SCOPED_TRACE(testing::PrintToString(set));
      with_scalar_type(config->precision.compute,
                       [&]<class T>(std::type_identity<T>) { expect_plain_loops<T>(*config); });
      ++tried;
    }
  }
  EXPECT_GE(tried, 2);
}

TEST_F(WeightAverage, OfACheckpointGoesOn) {
  int tried = 0;
  for (const Keys& grid : grids()) {
    const auto first = config_of("qwen3", grid, 0.9);
    if (!first) continue;
    SCOPED_TRACE(testing::PrintToString(grid));
    const test::TemporaryFolder folder(test::world(), "average");
    const test::Numbers whole = test::run_training(*first, test::world(), 12);
    deck::Config half = *first;
    half.checkpoint.directory = folder.path().string();
    test::run_training(half, test::world(), 6, true);
    half.checkpoint.resume = "auto";
    const test::Numbers same = test::run_training(half, test::world(), 12);
    EXPECT_EQ(same.ema, whole.ema);
    EXPECT_EQ(same.parameters, whole.parameters);
    for (const Keys& other : grids()) {
      auto changed = config_of("qwen3", other, 0.9);
      if (!changed || changed->optimizer.name != first->optimizer.name || ++tried > 12) continue;
      changed->checkpoint.directory = half.checkpoint.directory;
      changed->checkpoint.resume = "auto";
      test::expect_same_state(test::run_training(*changed, test::world(), 12).ema, whole.ema);
    }
  }
  EXPECT_GE(tried, 1);
}

// With another optimizer the moments start at zero; the average goes on.
TEST_F(WeightAverage, SurvivesAnotherOptimizer) {
  const test::TemporaryFolder folder(test::world(), "average_optimizer");
  deck::Config config = config_of("llama", {}, 0.9).value();
  config.checkpoint.directory = folder.path().string();
  const test::Numbers before = test::run_training(config, test::world(), 5, true);
  config.checkpoint.resume = "auto";
  config.optimizer.name = "muon";
  EXPECT_EQ(test::run_training(config, test::world(), 5).ema, before.ema);
}

TEST_F(WeightAverage, BeginsWithTheWeightsOfACheckpointWithoutOne) {
  const test::TemporaryFolder folder(test::world(), "no_average");
  deck::Config config = config_of("llama", {}, 0.0).value();
  config.checkpoint.directory = folder.path().string();
  const test::Numbers before = test::run_training(config, test::world(), 5, true);
  EXPECT_TRUE(before.ema.empty());
  config.checkpoint.resume = "auto";
  config.optimizer.ema_decay = 0.9;
  const test::Numbers now = test::run_training(config, test::world(), 5);
  EXPECT_EQ(now.ema, before.parameters);
  EXPECT_EQ(now.exp_avg, before.exp_avg);
}

// Training does not see it.
TEST_F(WeightAverage, ChangesNoBitOfTheTraining) {
  const test::Numbers with = test::run_training(config_of("llama", {}, 0.9).value(), test::world(), 5);
  const test::Numbers without = test::run_training(config_of("llama", {}, 0.0).value(), test::world(), 5);
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.parameters, without.parameters);
}

}  // namespace
}  // namespace nanotron
