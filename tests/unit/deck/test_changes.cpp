// ranks: 1
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/read_deck.hpp"

#include <gtest/gtest.h>

namespace nanotron::deck {
namespace {

std::string text_of(const Change& change) { return change.key + " " + change.before + " " + change.now; }

TEST(Changes, NameWhatMattersToTheTraining) {
  Config before, now;
  before.run.title = "it's ! a title";
  EXPECT_TRUE(changes_since(canonical_deck(before), before).empty());
  now.run.title = "another";
  now.run.output_dir = "elsewhere";
  now.parallel.tp = 4;
  now.data.micro_batch_size = 2;
  now.model.hidden_size = 64;  // is compared and refused elsewhere
  EXPECT_TRUE(changes_since(canonical_deck(before), now).empty());

  now.optimizer.beta2 = 0.99;
  now.run.on_bad_step = OnBadStep::roll_back;
  now.data.sequence_length = 1024;
  now.model.moe.capacity_factor = 1.5;
  const std::vector<Change> changes = changes_since(canonical_deck(before), now);
  ASSERT_EQ(changes.size(), 4u);
  EXPECT_EQ(text_of(changes[0]), "run%on_bad_step 'skip' 'roll_back'");
  EXPECT_EQ(text_of(changes[1]), "moe%capacity_factor 0.0 1.5");
  EXPECT_EQ(text_of(changes[2]), "optimizer%beta2 0.95 0.99");
  EXPECT_EQ(text_of(changes[3]), "data%sequence_length 512 1024");
  EXPECT_EQ(changes[2].influence, Influence::training);
  EXPECT_EQ(changes[3].influence, Influence::data_order);
}

// A key that an older deck lacks was at its default; other text is not a deck.
TEST(Changes, OfAnOlderDeckAndOfNone) {
  const std::string older = "&data sequence_length = 512 /\n&gone key = 1 /\n";
  Config now;
  EXPECT_TRUE(changes_since(older, now).empty());
  now.precision.moments = MomentType::bf16;
  ASSERT_EQ(changes_since(older, now).size(), 1u);
  EXPECT_EQ(text_of(changes_since(older, now)[0]), "precision%moments 'master' 'bf16'");
  EXPECT_TRUE(changes_since("", now).empty());
  EXPECT_TRUE(changes_since("\x01 no deck", now).empty());
}

}  // namespace
}  // namespace nanotron::deck
