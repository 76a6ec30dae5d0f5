// ranks: 1 2 4
// timeout: 300
// A blend of five token files with stages: the same tokens in every step on every grid and after every restart.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "nanotron/data/order/blend.hpp"
#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t length = 9, batch = 12, steps = 12;  // 144 samples

class Blends : public testing::Test {
 protected:
  Blends() : folder_(test::world(), "blend"), config_(test::golden_config("llama")) {
    MPI_Comm_size(test::world(), &ranks_);
    int rank = 0;
    MPI_Comm_rank(test::world(), &rank);
    config_.data.path.clear();
    for (int i = 0; i < 5; ++i) {
      const std::filesystem::path path = folder_.path() / fmt::format("tokens_{}.h5", i);
      config_.data.path += fmt::format("{}f{}={}", i == 0 ? "" : " ", i, path.string());
      if (rank == 0) test::write_tokens(path, (5 + 4 * i) * length + 1, 131 - 11 * i);
    }
    MPI_Barrier(test::world());
    config_.data.weights = "f0=0.3 f1=0.1 f2=0.45 f3=0.15 f4=0";
    config_.data.stages = "350: f4=1 f1=1 f2=0.5; 900: f0=1 f3=2 f4=0.1";  // in the middle of steps 4 and 9
    config_.data.sequence_length = length;
    config_.data.global_batch_size = batch;
    config_.data.micro_batch_size = 1;
    config_.model.num_hidden_layers = 4;
    config_.checkpoint.resume = "none";
    config_.checkpoint.directory = (folder_.path() / "checkpoints").string();
  }

  static deck::Config on(deck::Config config, int dp, int tp, int pp) {
    config.parallel.dp = dp;
    config.parallel.tp = tp;
    config.parallel.pp = pp;
    return config;
  }
  std::vector<deck::Config> grids(const deck::Config& config) const {
    return {on(config, ranks_, 1, 1), on(config, 1, ranks_, 1), on(config, 1, 1, ranks_)};
  }

  int ranks_ = 1;
  test::TemporaryFolder folder_;
  deck::Config config_;
};

TEST_F(Blends, EveryGridSeesTheSameTokens) {
  const test::Numbers reference = test::serial(config_, steps);
  EXPECT_EQ(std::set(reference.hashes.begin(), reference.hashes.end()).size(), static_cast<std::size_t>(steps));
  for (const deck::Config& config : grids(config_)) {
    const test::Numbers ours = test::run_training(config, test::world(), steps);
    EXPECT_EQ(ours.hashes, reference.hashes);
    EXPECT_LT(test::worst_loss_difference(ours, reference), 1e-11);
    test::expect_same_state(ours.parameters, reference.parameters);
  }
}

// Two restarts, each on another grid, and one part of the run with other micro-batches.
TEST_F(Blends, RestartsOnOtherGridsGoOnWithTheNextSample) {
  const test::Numbers reference = test::serial(config_, steps);
  std::vector<std::uint64_t> hashes;
  const std::vector<deck::Config> all = grids(config_);
  for (const auto& [grid, until] : {std::pair{std::size_t{0}, 4}, {std::size_t{1}, 7}, {std::size_t{2}, int{steps}}}) {
    deck::Config config = all[grid];
    config.checkpoint.resume = hashes.empty() ? "none" : "auto";
    config.data.micro_batch_size = grid == 1 ? 3 : 1;
    const test::Numbers part = test::run_training(config, test::world(), until, true);
    hashes.insert(hashes.end(), part.hashes.begin(), part.hashes.end());
  }
  EXPECT_EQ(hashes, reference.hashes);
}

// The files' shares of the run, and that order and weights matter to the hashes.
TEST_F(Blends, OtherWeightsAreOtherTokens) {
  const test::Numbers reference = test::serial(config_, 6);
  config_.data.stages = "351: f4=1 f1=1 f2=0.5";  // the same sample 39
  EXPECT_EQ(test::serial(config_, 6).hashes, reference.hashes);
  config_.data.stages = "361: f4=1 f1=1 f2=0.5";  // sample 41
  const std::vector<std::uint64_t> later = test::serial(config_, 6).hashes;
  EXPECT_TRUE(std::equal(later.begin(), later.begin() + 3, reference.hashes.begin()));
  EXPECT_NE(later[3], reference.hashes[3]);
  config_.data.weights = "f0=0.3 f1=0.15 f2=0.45 f3=0.1 f4=0";
  EXPECT_NE(test::serial(config_, 1).hashes, std::vector(reference.hashes.begin(), reference.hashes.begin() + 1));
}

}  // namespace
}  // namespace nanotron
