// ranks: 1
// What optimizer%qk_clip asks of a deck.
#include <gtest/gtest.h>

#include "nanotron/trainer/start/deck_features.hpp"
#include "support/run_decks.hpp"

namespace nanotron::trainer {
namespace {

using test::decks;

TEST(QkClipDecks, AreRefusedWhereScalingHasNoEffect) {
  const std::string clips = "optimizer.qk_clip=100";
  for (const char* name : {"adamw", "muon", "ademamix", "lion", "sophia"}) {
    EXPECT_EQ(decks.message(test::small_deck, {clips, std::string("optimizer.name=") + name}), "") << name;
  }
  EXPECT_EQ(decks.message(test::small_deck, {clips, "model.attention_sinks=t", "model.sliding_window=4"}), "");
  decks.expect_refused({clips, "optimizer.name=schedule_free_adamw"}, "derives from its states");
  decks.expect_refused({clips, "model.qk_norm=t"}, "which undoes the scaling of queries and keys");
  decks.expect_refused({clips, "model.attn_logit_softcapping=50"}, "not multiples of products");
  decks.expect_refused({clips, "model.position_embedding_type=alibi"}, "not multiples of products");
  decks.expect_refused({clips, "lora.rank=4", "lora.base=initial"}, "which this run does not train");
  decks.expect_refused({"optimizer.qk_clip=-1"}, "qk_clip");
}

}  // namespace
}  // namespace nanotron::trainer
