// ranks: 1 2 4
// timeout: 300
// Training on pairs of answers (DPO): the losses and rewards of TRL on every grid, of all weights and of adapters; the
// file of the reference model; resuming; layout bits.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "nanotron/trainer/plan/plan.hpp"
#include "support/comparison.hpp"
#include "support/grid.hpp"
#include "support/test_folder.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

using test::Grid;

constexpr std::int64_t steps = 10;

const std::vector<Grid> grids{{},
                              {.micro_batch = 2},
                              {.zero = 1},
                              {.zero = 3},
                              {.tp = 2},
                              {.pp = 2},
                              {.cp = 2},
                              {.tp = 2, .mode = deck::TpMode::reduce_scatter},
                              {.tp = 2, .zero = 2},
                              {.pp = 2, .zero = 1, .recompute = deck::Recompute::selective},
                              {.tp = 2, .pp = 2, .recompute = deck::Recompute::full},
                              {.tp = 2, .cp = 2},
                              {.pp = 2, .cp = 2}};

class Preference : public testing::Test {
 protected:
  Preference() : folder_(test::world(), testing::UnitTest::GetInstance()->current_test_info()->name()) {
    MPI_Comm_size(test::world(), &ranks_);
    MPI_Comm_rank(test::world(), &rank_);
  }

  // As tests/golden/make_preference_golden.py.
  deck::Config golden() const {
    deck::Config config =
        test::golden_config("llama", {"data.sequences=pairs", "data.document_mask=block_diagonal",
                                      "preference.beta=0.5", "data.global_batch_size=4", "data.sequence_length=24"});
    config.data.path = (test::test_folder() / "golden" / "preference" / "pairs.h5").string();
    config.preference.reference = reference().string();
    return config;
  }
  static void adapt(deck::Config& config) {  // as tests/golden/make_lora_golden.py
    config.lora = {.rank = 3,
                   .alpha = 5.0,
                   .targets = "down_proj gate_proj up_proj k_proj o_proj q_proj v_proj",
                   .base = config.checkpoint.resume};
    config.checkpoint.resume = (test::test_folder() / "golden" / "lora" / "step_00000000").string();
  }
  std::filesystem::path reference() const { return folder_.path() / "reference.txt"; }
  void forget_reference() const {
    MPI_Barrier(test::world());
    if (rank_ == 0) std::filesystem::remove(reference());
    MPI_Barrier(test::world());
  }

  std::optional<deck::Config> on(const deck::Config& config, const Grid& g) const {
    return test::on_grid(config, g, ranks_);
  }

  // Each grid computes the file of the reference model itself.
  void compare_with_trl(const deck::Config& config, const char* what) {
    std::ifstream file(test::test_folder() / "golden" / "preference" / "golden.json");
    const nlohmann::json expected = nlohmann::json::parse(file).at(what);
    const auto numbers = [&](const char* name) { return expected.at(name).get<std::vector<double>>(); };
    double worst = 0.0;
    for (const Grid& g : grids) {
      const auto here = on(config, g);
      if (!here) continue;
      SCOPED_TRACE(text(g));
      forget_reference();
      const test::Numbers ours = test::run_training(*here, test::world(), steps);
      const double off = test::larger(test::largest_relative_difference(ours.losses, numbers("losses")),
                                      test::largest_relative_difference(ours.grad_norms, numbers("grad_norms")));
      EXPECT_LT(off, 1e-10);
      worst = test::larger(worst, off);
      EXPECT_LT(test::largest_difference(ours.rewards_chosen, numbers("rewards_chosen")), 1e-10);
      EXPECT_LT(test::largest_difference(ours.rewards_rejected, numbers("rewards_rejected")), 1e-10);
      EXPECT_LT(test::largest_difference(ours.rewards_margin, numbers("rewards_margin")), 1e-10);
      EXPECT_EQ(ours.rewards_accuracy, numbers("rewards_accuracy"));
      EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel);
      EXPECT_EQ(ours.counted.context_parallel, ours.predicted.context_parallel);
      EXPECT_EQ(ours.counted.data_parallel, ours.predicted.data_parallel);
      EXPECT_EQ(ours.counted.pipeline, ours.predicted.pipeline);
      for (const auto& [name, sums] : expected.at("parameters").items()) {
        double squares = 0.0;
        for (const double x : ours.parameters.at(name)) squares += x * x;
        const double l2 = sums.at("l2");
        EXPECT_NEAR(std::sqrt(squares), l2, 1e-9 * l2) << name;
      }
    }
    if (rank_ == 0) std::printf("%s on %d ranks: worst relative difference from TRL %.1e\n", what, ranks_, worst);
  }

  test::TemporaryFolder folder_;
  int ranks_ = 1, rank_ = 0;
};

TEST_F(Preference, AllWeightsHaveTheLossesOfTrl) { compare_with_trl(golden(), "whole"); }

TEST_F(Preference, AdaptersHaveTheLossesOfTrl) {
  deck::Config config = golden();
  adapt(config);
  compare_with_trl(config, "adapters");
}

// The file of one grid is read by another; a resumed run finds it, and its pairs in another order.
TEST_F(Preference, ResumesOnAnotherGrid) {
  deck::Config config = golden();
  config.data.shuffle = deck::Shuffle::global;
  const test::Numbers whole = test::run_training(*on(config, {}), test::world(), steps);
  const auto written = std::filesystem::last_write_time(reference());
  config.checkpoint.directory = (folder_.path() / "checkpoints").string();
  test::run_training(*on(config, {.zero = ranks_ > 1 ? 2 : 0}), test::world(), steps / 2, true);
  config.checkpoint.resume = "auto";
  const auto second = ranks_ > 1 ? on(config, {.tp = 2}) : on(config, {.micro_batch = 2});
  const test::Numbers resumed = test::run_training(*second, test::world(), steps);
  ASSERT_EQ(resumed.losses.size(), static_cast<std::size_t>(steps / 2));
  for (std::size_t i = 0; i < resumed.losses.size(); ++i)
    EXPECT_NEAR(resumed.losses[i], whole.losses[i + steps / 2], 1e-10 * whole.losses[i + steps / 2]);
  test::expect_same_state(resumed.parameters, whole.parameters);
  EXPECT_EQ(std::filesystem::last_write_time(reference()), written);
}

std::string error_of(const deck::Config& config, std::int64_t until = 1) {
  try {
    test::run_training(config, test::world(), until);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_F(Preference, RefusesAFileOfOtherPairsOrWeights) {
  deck::Config config = *on(golden(), {});
  config.run.output_dir = folder_.path().string();
  config.preference.reference.clear();  // reference.txt in the folder
  ASSERT_EQ(error_of(config), "");
  EXPECT_TRUE(std::filesystem::exists(reference()));
  EXPECT_EQ(error_of(config), "");
  deck::Config other = config;
  other.checkpoint.resume = "none";
  EXPECT_NE(error_of(other).find("of other weights than the run begins with"), std::string::npos) << error_of(other);
  other.preference.reference = reference().string();  // a model of its own
  EXPECT_EQ(error_of(other), "");
  other = config;
  const std::string copy = (folder_.path() / "copy.h5").string();
  if (rank_ == 0) std::filesystem::copy_file(config.data.path, copy);
  MPI_Barrier(test::world());
  other.data.path = "0.5 " + config.data.path + "\n0.5 " + copy;
  EXPECT_NE(error_of(other).find("are of other pairs"), std::string::npos) << error_of(other);

  config.checkpoint.directory = (folder_.path() / "checkpoints").string();
  test::run_training(config, test::world(), 2, true);
  config.checkpoint.resume = "auto";
  EXPECT_EQ(error_of(config, 3), "");
  forget_reference();
  EXPECT_NE(error_of(config, 3).find("the file that the run wrote when it began"), std::string::npos);
}

// Steps in lower precision follow those in fp64.
TEST_F(Preference, InLowerPrecision) {
  const test::Numbers reference = test::run_training(*on(golden(), {}), test::world(), 4);
  for (const ScalarType type : {ScalarType::fp32, ScalarType::bf16}) {
    forget_reference();
    deck::Config config = golden();
    config.precision.compute = type;
    const test::Numbers ours = test::run_training(*on(config, {}), test::world(), 4);
    EXPECT_LT(test::largest_relative_difference(ours.losses, reference.losses), type == ScalarType::bf16 ? 0.2 : 1e-4);
    EXPECT_NEAR(ours.losses.front(), std::log(2.0), 1e-15) << "trained and reference model are the same";
  }
}

TEST_F(Preference, HasLayoutBits) {
  deck::Config config = golden();
  config.precision.compute = ScalarType::fp32;
  config.precision.reproducible = deck::Reproducible::layout;
  config.precision.tensor_shards = 2;
  int over_cp = 0;
  for (const std::int64_t context_shards : {1, 4}) {
    config.precision.context_shards = context_shards;
    config.precision.batch_shards = context_shards == 1 ? 4 : 0;
    deck::Config of_rank = config;  // every rank runs it
    of_rank.preference.reference += std::to_string(rank_);
    forget_reference();
    std::filesystem::remove(of_rank.preference.reference);
    const test::Numbers alone = test::serial(of_rank, 3);
    for (const Grid& g : {Grid{}, Grid{.tp = 2}, Grid{.pp = 2}, Grid{.tp = 2, .pp = 2}, Grid{.zero = 2}, Grid{.cp = 2},
                          Grid{.cp = 4}, Grid{.tp = 2, .cp = 2}, Grid{.pp = 2, .cp = 2}}) {
      const auto here = on(config, g);
      if (!here || g.cp > context_shards) continue;
      SCOPED_TRACE(text(g));
      over_cp += g.cp > 1 ? 1 : 0;
      forget_reference();
      const test::Numbers ours = test::run_training(*here, test::world(), 3);
      EXPECT_EQ(ours.losses, alone.losses);
      EXPECT_EQ(ours.grad_norms, alone.grad_norms);
      EXPECT_EQ(ours.parameters, alone.parameters);
      EXPECT_EQ(ours.rewards_chosen, alone.rewards_chosen);
      EXPECT_EQ(ours.rewards_rejected, alone.rewards_rejected);
      EXPECT_EQ(ours.counted.context_parallel, ours.predicted.context_parallel);
      EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel);
    }
  }
  EXPECT_EQ(over_cp, ranks_ == 1 ? 0 : ranks_ == 2 ? 1 : 4);
}

TEST_F(Preference, PlansItsMemory) {
  const auto planned = [](deck::Config config) {
    config.parallel.dp = 1;
    trainer::resolve(config, 1);
    return trainer::plan_step(config, {}).memory.total();
  };
  deck::Config with = golden(), without = with;
  without.preference = {};
  without.data.sequences = deck::SequenceKind::documents;
  // Weights of a micro-batch's tokens; for each of 4 pairs two references and three rewards, two sums; each padded.
  const std::size_t more = 24 * 8 + 4 * 5 * 8 + 2 * 8;
  EXPECT_GE(planned(with), planned(without) + more);
  EXPECT_LE(planned(with), planned(without) + more + 16 * 256);
}

}  // namespace
}  // namespace nanotron
