// ranks: 1
// What &preference asks of a deck.
#include <gtest/gtest.h>

#include "nanotron/trainer/start/deck_features.hpp"
#include "support/run_decks.hpp"

namespace nanotron::trainer {
namespace {

using test::decks;

const test::Settings pairs{"preference.beta=0.1", "data.sequences=pairs", "data.document_mask=block_diagonal"};

test::Settings with(test::Settings more) {
  more.insert(more.end(), pairs.begin(), pairs.end());
  return more;
}

TEST(PreferenceDecks, Accepted) {
  EXPECT_EQ(decks.message(test::small_deck, pairs), "");
  EXPECT_EQ(decks.message(test::small_deck, with({"parallel.tp=2", "parallel.pp=2", "parallel.cp=2"}), 8), "");
  EXPECT_EQ(decks.message(test::small_deck, with({"precision.reproducible=layout"}), 2), "");
  EXPECT_EQ(decks.message(test::small_deck,
                          with({"precision.reproducible=layout", "precision.context_shards=2", "parallel.cp=2"}), 2),
            "");
  EXPECT_EQ(decks.message(test::small_deck, with({"lora.rank=4", "lora.base=initial", "moe.num_experts=0"})), "");
  EXPECT_EQ(decks.message(test::small_deck, with({"moe.num_experts=4"})), "");
}

TEST(PreferenceDecks, Refused) {
  decks.expect_refused({"preference.beta=0.1"}, "sequences = 'pairs', with a data%path");
  decks.expect_refused({"data.sequences=pairs", "data.document_mask=block_diagonal"}, "beta is 0");
  decks.expect_refused({"data.sequences=pairs"}, "document_mask = 'block_diagonal'");
  decks.expect_refused({"preference.reference=r.txt"}, "reference belongs to training on pairs");
  decks.expect_refused({"preference.beta=-1"}, "0 <= x");
  decks.expect_refused(with({"data.validation_path=v.h5"}), "no validation_path");
  decks.expect_refused(with({"data.validation_fraction=0.1"}), "validation_fraction = 0");
  decks.expect_refused(with({"optimizer.z_loss_coefficient=1e-4"}), "z_loss_coefficient = 0");
  decks.expect_refused(with({"data.goldfish_k=4"}), "goldfish_k = 0");
  decks.expect_refused(with({"model.num_nextn_predict_layers=1"}), "have a loss of tokens alone");
  decks.expect_refused(with({"moe.num_experts=4", "moe.capacity_factor=1.5"}), "capacity_factor = 0");
  decks.expect_refused(with({"optimizer.name=sophia"}), "curvature of a loss of tokens");
}

}  // namespace
}  // namespace nanotron::trainer
