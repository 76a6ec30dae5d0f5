// ranks: 1 2
// Rows of a vocabulary that is not a multiple of 8 begin where the fast kernels of tensor cores take them.
#include <gtest/gtest.h>

#include "emulation/gemms.hpp"
#include "support/drawn_decks.hpp"
#include "support/trainer_run.hpp"

namespace nanotron {
namespace {

TEST(OddVocabulary, HasRowsForTensorCores) {
  int ranks = 0;
  MPI_Comm_size(test::world(), &ranks);
  const test::TokensOfDocuments tokens("odd_vocabulary", 20'000);
  const std::optional<deck::Config> config = test::deck_if_legal(
      "llama",
      {"precision.compute=bf16", "model.vocab_size=131", "model.intermediate_size=96",
       "parallel.tp=" + std::to_string(ranks), "checkpoint.resume=none", "data.path='" + tokens.path() + "'"},
      ranks);
  ASSERT_TRUE(config);
  test::TrainerRun<bf16> run(*config, test::world());
  emulation::gemms_of_odd_rows = 0;
  EXPECT_TRUE(run->train_step().updated);
  EXPECT_EQ(emulation::gemms_of_odd_rows, 0);
}

}  // namespace
}  // namespace nanotron
