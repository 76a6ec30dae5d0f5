// ranks: 1
// What positions, windows and scores of attention ask of a deck.
#include <gtest/gtest.h>

#include "nanotron/trainer/start/deck_features.hpp"
#include "support/run_decks.hpp"

namespace nanotron::trainer {
namespace {

using test::decks;
using test::small_deck;

TEST(AttentionFeatures, RotaryPositions) {
  const std::string learned = "model.position_embedding_type=learned_absolute",
                    many = "model.max_position_embeddings=32";
  decks.expect_refused({"model.rope_factor=8"}, "rope_type = 'linear', 'dynamic', 'llama3', 'yarn' or 'longrope'");
  decks.expect_refused({"model.rope_type=llama3", "model.rope_factor=8"},
                       "the length that the model was first trained for");
  const std::string length = "model.original_max_position_embeddings=16";
  decks.expect_refused({"model.rope_type=llama3", length, "model.rope_beta_slow=2"},
                       "rope_beta_slow belongs to rope_type = 'yarn'");
  decks.expect_refused({"model.rope_type=yarn", length, "model.rope_low_freq_factor=2"},
                       "belongs to rope_type = 'llama3'");
  decks.expect_refused({"model.rope_type=llama3", length, "model.rope_low_freq_factor=4"}, "1 and 4");
  decks.expect_refused({"model.rope_type=yarn", length, "model.rope_beta_slow=32"}, "1 and 32");
  decks.expect_refused({"model.rope_type=ntk"}, "'default' | 'linear' | 'dynamic' | 'llama3' | 'yarn' | 'longrope'");
  decks.expect_refused({"model.rope_type=dynamic"}, "the length that the model was first trained for");
  decks.expect_refused({"model.rope_type=dynamic", length, "model.partial_rotary_factor=0.25"}, "at least 4 rotated");
  decks.expect_refused({"model.rope_type=linear", length}, "belongs to the other types of rope scaling");
  decks.expect_refused({"model.rope_type=linear", "model.rope_attention_factor=1.5"}, "'yarn' or 'longrope'");
  decks.expect_refused({"model.rope_short_factor=1 1 1 1"}, "rope_short_factor belongs to rope_type = 'longrope'");
  const std::string longrope = "model.rope_type=longrope", short_factor = "model.rope_short_factor=1 1 1 1";
  EXPECT_EQ(decks.message(small_deck, {longrope, length, short_factor, "model.rope_long_factor=1 2 3 4"}), "");
  decks.expect_refused({longrope, length, short_factor}, "4 positive numbers");
  decks.expect_refused({longrope, length, short_factor, "model.rope_long_factor=1 2 3"},
                       "rope_long_factor has 3 numbers");
  decks.expect_refused({longrope, length, short_factor, "model.rope_long_factor=1 2 3 -4"}, "4 positive numbers");
  decks.expect_refused({longrope, length, short_factor, "model.rope_long_factor=1 2 3 x"},
                       "something else than numbers");
  decks.expect_refused({"model.partial_rotary_factor=0.4"}, "rotates 3 of the 8 elements of a head");
  decks.expect_refused({"model.partial_rotary_factor=1.5"}, "0 < x <= 1");
  decks.expect_refused({learned, many, "model.rope_interleaved=t"}, "rope_interleaved belongs to the rotary embedding");
  decks.expect_refused({"model.position_embedding_type=none", "model.rope_theta=5e5"},
                       "belongs to the rotary embedding");
  EXPECT_EQ(decks.message(small_deck, {"model.position_embedding_type=none", "model.head_dim=7"}), "");
  decks.expect_refused({"model.rope_factor=0.5", "model.rope_type=yarn", length}, ">= 1");
}

TEST(AttentionFeatures, LayersThatDiffer) {
  const std::string window = "model.sliding_window=6", layers = "model.num_hidden_layers=4";
  EXPECT_EQ(decks.message(small_deck, {window, layers, "model.window_layers=3:1", "model.rope_local_theta=1e3"}), "");
  EXPECT_EQ(decks.message(small_deck, {layers, "model.rope_layers=!3"}), "");
  decks.expect_refused({layers, "model.window_layers=1:1"}, "window_layers belongs to sliding_window");
  decks.expect_refused({layers, "model.rope_local_theta=1e3"}, "rope_local_theta belongs to sliding_window");
  decks.expect_refused({layers, window, "model.window_layers=0-4"}, "names layer 4 of 4 layers");
  decks.expect_refused({layers, "model.rope_layers=2 9"}, "at most 3");
  decks.expect_refused({layers, "model.rope_layers=3:"}, "is not a:b");
  decks.expect_refused({layers, "model.rope_layers=1:1", "model.position_embedding_type=learned_absolute",
                        "model.max_position_embeddings=32"},
                       "rope_layers belongs to the rotary embedding");
}

}  // namespace
}  // namespace nanotron::trainer
