// ranks: 2 3 4
// timeout: 300
// Global batches that do not divide an epoch: a step takes the rest of one epoch and the beginning of the next, the
// same samples on every grid, so that no step is smaller than another.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = test::compared_steps;
constexpr std::int64_t length = 9, sequences = 17, batch = 12;  // 10 steps are 7 epochs and a bit

class Epochs : public testing::TestWithParam<deck::Shuffle> {};

TEST_P(Epochs, GoOverIntoEachOtherOnEveryGrid) {
  int ranks = 1, rank = 0;
  MPI_Comm_size(test::world(), &ranks);
  MPI_Comm_rank(test::world(), &rank);
  const test::TemporaryFolder folder(test::world(), "epochs");
  const std::filesystem::path path = folder.path() / "tokens.h5";
  if (rank == 0) test::write_tokens(path, sequences * length + 1, 131);
  MPI_Barrier(test::world());
  deck::Config config = test::golden_config("llama");
  config.checkpoint.resume = "none";
  config.model.num_hidden_layers = 4;
  config.data.path = path.string();
  config.data.sequence_length = length;
  config.data.global_batch_size = batch;
  config.data.micro_batch_size = 1;
  config.data.shuffle = GetParam();
  const test::Numbers reference = test::serial(config, steps);
  for (const auto& [dp, tp, pp, cp] :
       {std::array{ranks, 1, 1, 1}, {1, ranks, 1, 1}, {1, 1, ranks, 1}, {1, 1, 1, ranks}}) {
    SCOPED_TRACE(fmt::format("dp {} tp {} pp {} cp {}", dp, tp, pp, cp));
    config.parallel.dp = dp;
    config.parallel.tp = tp;
    config.parallel.pp = pp;
    config.parallel.cp = cp;
    const test::Numbers ours = test::run_training(config, test::world(), steps);
    EXPECT_EQ(ours.hashes, reference.hashes);
    EXPECT_LT(test::worst_loss_difference(ours, reference), 1e-11);
    test::expect_same_state(ours.parameters, reference.parameters);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, Epochs, testing::Values(deck::Shuffle::none, deck::Shuffle::global),
                         [](const auto& info) {
                           return std::string(info.param == deck::Shuffle::none ? "none" : "global");
                         });

}  // namespace
}  // namespace nanotron
