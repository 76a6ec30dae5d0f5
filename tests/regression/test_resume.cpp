// ranks: 1 2 4
// timeout: 900
// 10 steps, a checkpoint, 10 more on the same or another grid, against 20 uninterrupted ones: losses,
// parameters, both moments and the step counts.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

struct Grid {
  int tp;
  int dp;
};

class Resume : public testing::Test {
 protected:
  void SetUp() override { MPI_Comm_size(test::world(), &ranks_); }

  static deck::Config on(deck::Config config, const Grid& grid) {
    config.parallel.tp = grid.tp;
    config.parallel.dp = grid.dp;
    return config;
  }

  // Runs on the first tp * dp ranks; returns empty numbers elsewhere.
  static test::Numbers run(const deck::Config& config, std::int64_t until, bool save) {
    const test::SubWorld some(test::world(), static_cast<int>(config.parallel.tp * config.parallel.dp));
    test::Numbers numbers;
    if (some.member()) numbers = test::run_training(config, some.get(), until, save);
    MPI_Barrier(test::world());
    return numbers;
  }

  // The last ten of twenty uninterrupted steps on `first`, and the ten behind a checkpoint on `second`.
  void interrupt(const deck::Config& base, const Grid& first, const Grid& second, test::Numbers& whole,
                 test::Numbers& resumed) {
    const test::TemporaryFolder folder(test::world(), "resume");
    deck::Config config = on(base, first);
    config.checkpoint.directory = folder.path().string();
    whole = run(config, 20, false);
    whole.losses.erase(whole.losses.begin(), whole.losses.begin() + std::min<std::ptrdiff_t>(10, whole.losses.size()));
    whole.hashes.erase(whole.hashes.begin(), whole.hashes.begin() + std::min<std::ptrdiff_t>(10, whole.hashes.size()));
    run(config, 10, true);
    config = on(config, second);
    config.checkpoint.resume = "auto";
    resumed = run(config, 20, false);
  }

  static bool took_part(const test::Numbers& a, const test::Numbers& b) {
    return !a.losses.empty() && !b.losses.empty();
  }

  static void expect_close(const test::Numbers& resumed, const test::Numbers& whole, double losses, double state) {
    EXPECT_EQ(resumed.hashes, whole.hashes);
    EXPECT_EQ(resumed.adam_steps, 20);
    EXPECT_EQ(whole.adam_steps, 20);
    ASSERT_EQ(resumed.losses.size(), 10u);
    for (std::size_t i = 0; i < 10; ++i) {
      EXPECT_NEAR(resumed.losses[i], whole.losses[i], losses * whole.losses[i]) << "step " << i + 10;
    }
    for (const auto& [name, tensor] : whole.parameters) {
      EXPECT_LT(test::relative_difference(resumed.parameters.at(name), tensor), state) << name;
      EXPECT_LT(test::relative_difference(resumed.exp_avg.at(name), whole.exp_avg.at(name)), 10 * state) << name;
      EXPECT_LT(test::relative_difference(resumed.exp_avg_sq.at(name), whole.exp_avg_sq.at(name)), 10 * state) << name;
    }
  }

  int ranks_ = 1;
};

TEST_F(Resume, OnTheSameGridContinuesBitForBit) {
  for (const char* name : {"llama", "qwen2", "qwen3"}) {
    for (const ScalarType type : {ScalarType::fp64, ScalarType::fp32, ScalarType::bf16}) {
      SCOPED_TRACE(fmt::format("{} {}", name, name_of(type)));
      deck::Config config = test::golden_config(name);
      config.precision.compute = type;
      const Grid grid{ranks_ >= 2 ? 2 : 1, ranks_ >= 2 ? ranks_ / 2 : 1};
      test::Numbers whole, resumed;
      interrupt(config, grid, grid, whole, resumed);
      EXPECT_EQ(resumed.losses, whole.losses);
      EXPECT_EQ(resumed.parameters, whole.parameters);
      EXPECT_EQ(resumed.exp_avg, whole.exp_avg);
      EXPECT_EQ(resumed.exp_avg_sq, whole.exp_avg_sq);
      EXPECT_EQ(resumed.adam_steps, 20);
    }
  }
}

TEST_F(Resume, OnAnotherGridContinuesWithinRounding) {
  if (ranks_ == 1) return;  // nothing to change
  std::vector<std::pair<Grid, Grid>> changes{{{2, 1}, {1, 1}}, {{1, 1}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 2}, {2, 1}}};
  if (ranks_ == 4) {
    changes = {{{2, 2}, {4, 1}}, {{4, 1}, {1, 4}}, {{3, 1}, {2, 2}}, {{1, 4}, {3, 1}}, {{2, 2}, {1, 1}}};
  }
  for (const char* name : {"llama", "qwen2", "qwen3", "later_tokens"}) {
    for (const auto& [first, second] : changes) {
      SCOPED_TRACE(fmt::format("{}: tp {} dp {} -> tp {} dp {}", name, first.tp, first.dp, second.tp, second.dp));
      test::Numbers whole, resumed;
      interrupt(test::golden_config(name), first, second, whole, resumed);
      if (took_part(whole, resumed)) expect_close(resumed, whole, 1e-11, 1e-9);
    }
  }
}

TEST_F(Resume, InFp32OnAnotherGridContinuesWithinRounding) {
  if (ranks_ == 1) return;
  deck::Config config = test::golden_config("llama");
  config.precision.compute = ScalarType::fp32;
  test::Numbers whole, resumed;
  interrupt(config, {2, 1}, {1, 2}, whole, resumed);
  if (took_part(whole, resumed)) expect_close(resumed, whole, 1e-5, 1e-2);
}

TEST_F(Resume, OrderOfSamplesSurvivesAnotherDpAndMicroBatch) {
  deck::Config config = test::golden_config("llama");
  config.data.shuffle = deck::Shuffle::global;
  const test::TemporaryFolder folder(test::world(), "order");
  config.checkpoint.directory = folder.path().string();
  config = on(config, {1, ranks_});
  const test::Numbers whole = run(config, 20, false);
  run(config, 10, true);
  config = on(config, {ranks_ == 4 ? 4 : 1, 1});
  config.checkpoint.resume = "auto";
  config.data.micro_batch_size = 4;
  const test::Numbers resumed = run(config, 20, false);
  if (!took_part(whole, resumed)) return;
  EXPECT_EQ(resumed.hashes, std::vector<std::uint64_t>(whole.hashes.begin() + 10, whole.hashes.end()));
}

}  // namespace
}  // namespace nanotron
