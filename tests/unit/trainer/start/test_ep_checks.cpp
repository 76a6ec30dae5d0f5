// ranks: 1
// What keys of the messages between ranks with experts ask of a deck.
#include <gtest/gtest.h>

#include "nanotron/trainer/start/deck_features.hpp"
#include "support/run_decks.hpp"

namespace nanotron::trainer {
namespace {

using test::decks;
using test::small_deck;

const std::string experts = small_deck + "&moe num_experts = 4 /\n&parallel dp = 4, ep = 2 /\n";

void expect_refused(test::Settings settings, const std::string& words) {
  settings.insert(settings.begin(), "data.global_batch_size=16");
  const std::string text = decks.message(experts, settings);
  EXPECT_NE(text.find(words), std::string::npos) << text;
}

TEST(EpChecks, HalvesOfAMicroBatch) {
  const std::string overlap = "parallel.ep_overlap=t", two = "data.micro_batch_size=2",
                    batch = "data.global_batch_size=16";
  EXPECT_EQ(decks.message(experts, {batch, overlap, two}), "");
  EXPECT_EQ(decks.message(experts, {batch, overlap, "data.micro_batch_size=4", "parallel.zero_stage=3"}), "");
  expect_refused({overlap, "data.micro_batch_size=1"}, "two halves, but micro_batch_size = 1");
  expect_refused({overlap, two, "parallel.ep=1"}, "ep = 1 has none");
  expect_refused({overlap, two, "parallel.offload_layers=1"}, "offload_layers");
  expect_refused({overlap, two, "parallel.zero_stage=2", "model.tie_word_embeddings=t"}, "zero_stage at most 1");
  EXPECT_EQ(decks.message(experts, {batch, overlap, two, "parallel.zero_stage=1", "model.tie_word_embeddings=t"}), "");
  EXPECT_EQ(decks.message(experts, {batch, overlap, "precision.reproducible=layout"}), "");
  const std::string odd =
      decks.message(experts, {"data.global_batch_size=4", overlap, "precision.reproducible=layout"});
  EXPECT_NE(odd.find("sequences in pairs"), std::string::npos) << odd;
  expect_refused({overlap, "precision.reproducible=layout", "data.rampup_batch_size=4", "data.rampup_increment=4",
                  "data.rampup_samples=100"},
                 "rampup_batch_size gives each of dp = 4 ranks 1");
}

TEST(EpChecks, FormOfRows) {
  EXPECT_EQ(decks.message(experts, {"parallel.ep_row_type=fp8"}), "");
  expect_refused({"parallel.ep_row_type=bf16", "parallel.ep=1"}, "ep = 1 has none");
  expect_refused({"parallel.ep_row_type=fp8", "precision.reproducible=layout"}, "rounded where they travel");
  expect_refused({"parallel.ep_row_type=fp4"}, "ep_row_type");
}

}  // namespace
}  // namespace nanotron::trainer
