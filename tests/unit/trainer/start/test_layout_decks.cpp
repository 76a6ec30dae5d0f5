// ranks: 1
// What precision%reproducible = 'layout' asks of a deck.
#include <gtest/gtest.h>

#include "nanotron/trainer/start/deck_features.hpp"
#include "support/run_decks.hpp"

namespace nanotron::trainer {
namespace {

using test::decks;
using test::small_deck;

TEST(LayoutDecks, NeedAGridThatCutsNoSum) {
  const std::string deck = std::string(small_deck) + "&parallel dp = 1 /\n";
  EXPECT_EQ(decks.message(deck, {"precision.reproducible=layout"}), "");
  const auto refused = [&](std::vector<std::string> set, const std::string& words) {
    set.insert(set.begin(), {"precision.reproducible=layout", "parallel.dp=1"});
    EXPECT_NE(decks.message(deck, set).find(words), std::string::npos) << decks.message(deck, set);
  };
  refused({"parallel.cp=2", "parallel.cp_mode=all_to_all"}, "cp = 2 splits sums differently than context_shards = 1");
  EXPECT_EQ(decks.message(deck, {"precision.reproducible=layout", "parallel.cp=2", "precision.context_shards=2"}), "");
  refused({"parallel.cp=2", "precision.context_shards=6"}, "cp = 1, 3 or 6");
  refused({"precision.context_shards=1000"}, "<=");
  refused({"precision.tensor_shards=9"}, "tensor_shards = 9, but there are 8 query heads");
  refused({"precision.batch_shards=5"}, "batch_shards = 5 does not divide");
  refused({"moe.num_experts=6", "parallel.ep=3", "parallel.cp=2", "parallel.dp=3", "parallel.cp_mode=all_to_all",
           "precision.context_shards=2"},
          "ep a multiple of 2");
  refused({"parallel.compression=powersgd"}, "compression = 'bf16' or 'none'");
  EXPECT_EQ(decks.message(deck, {"precision.reproducible=layout", "optimizer.name=muon"}), "");
  refused({"parallel.gradient_sum=adasum"}, "gradient_sum = 'sum'");
}

// Both modes have the same bits: the other one where the ranks' tokens are no node of the tree, or several sequences
// are added before the ranks.
TEST(LayoutDecks, MayNeedRowsOfAllTokens) {
  const auto mode = [](const test::Settings& more) {
    test::Settings set{"precision.reproducible=layout", "precision.tensor_shards=2", "parallel.tp=2", "parallel.dp=1",
                       "parallel.tp_mode=reduce_scatter"};
    set.insert(set.end(), more.begin(), more.end());
    deck::Config config = decks.read("", set);
    decks.resolve(config, 2);
    return config.parallel.tp_mode;
  };
  const std::string sequences = "precision.batch_shards=6", later = "model.num_nextn_predict_layers=1";
  EXPECT_EQ(mode({}), deck::TpMode::reduce_scatter);
  EXPECT_EQ(mode({"data.sequence_length=9"}), deck::TpMode::all_reduce);
  EXPECT_EQ(mode({sequences}), deck::TpMode::reduce_scatter);
  EXPECT_EQ(mode({later}), deck::TpMode::reduce_scatter);
  EXPECT_EQ(mode({sequences, later}), deck::TpMode::all_reduce);
}

}  // namespace
}  // namespace nanotron::trainer
