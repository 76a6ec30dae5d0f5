// ranks: 1
// What features of training ask of a deck.
#include "nanotron/trainer/start/deck_features.hpp"
#include "support/run_decks.hpp"

namespace nanotron::trainer {
namespace {

using test::decks;
using test::small_deck;

TEST(DeckFeatures, WeightDecayOfNamedParameters) {
  const auto of = [](const std::string& patterns) { return "optimizer.no_weight_decay=" + patterns; };
  for (const char* known :
       {"*embed_tokens*", "!* *bias* *embed_tokens*", "model.norm.weight", "*mlp/up_proj*,lm_head*"}) {
    const test::Settings set{of(known), "model.qkv_bias=t"};
    EXPECT_EQ(decks.message(small_deck, set), "") << known;
  }
  EXPECT_EQ(decks.message(small_deck, {of("*experts/down_proj*"), "moe.num_experts=6"}), "");
  decks.expect_refused({of("*embed_token")}, "a name such as model/embed_tokens/weight");
  decks.expect_refused({of("*norm* *bias*")}, "fits '*bias*'");
  decks.expect_refused({of("!*wte*")}, "fits '!*wte*'");
}

TEST(DeckFeatures, ResidualMultiplier) {
  const std::string multiplier = "model.residual_multiplier=0.2";
  EXPECT_EQ(decks.message(small_deck, {multiplier}), "");
  decks.expect_refused({multiplier, "model.norm_placement=post"}, "or residual_multiplier = 1");
  decks.expect_refused({multiplier, "model.parallel_residual=one_norm"}, "or residual_multiplier = 1");
}

TEST(DeckFeatures, Dropout) {
  const std::string hidden = "model.hidden_dropout=0.1", attention = "model.attention_dropout=0.1";
  EXPECT_EQ(decks.message(small_deck, {hidden, attention}), "");
  EXPECT_EQ(decks.message(small_deck, {attention, "model.norm_placement=post"}), "");
  decks.expect_refused({hidden, "model.norm_placement=sandwich"}, "or hidden_dropout = 0");
  decks.expect_refused({hidden, "model.parallel_residual=two_norms"}, "or hidden_dropout = 0");
  decks.expect_refused({"model.attention_dropout=1"}, "attention_dropout");
  decks.expect_refused({"model.dropout=0.1"}, "hidden_dropout");
}

TEST(DeckFeatures, RecomputedLayers) {
  const std::string full = "parallel.recompute=full";
  EXPECT_EQ(decks.message(small_deck, {full, "parallel.recompute_layers=1"}), "");
  EXPECT_EQ(decks.message(small_deck, {"parallel.offload_layers=1"}), "");
  decks.expect_refused({"parallel.recompute_layers=1"}, "recompute = 'none', so that no layer recomputes");
  decks.expect_refused({full, "parallel.recompute_layers=0-2"}, "names layer 2 of 2 layers");
  decks.expect_refused({full, "parallel.recompute_layers=one"}, "'one' is neither a layer");
}

}  // namespace
}  // namespace nanotron::trainer
