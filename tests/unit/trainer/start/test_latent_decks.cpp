// ranks: 1
// What latent attention asks of a deck.
#include <gtest/gtest.h>

#include "nanotron/deck/attention_sizes.hpp"
#include "nanotron/model/cost.hpp"
#include "nanotron/model/parameters/parameter_table.hpp"
#include "nanotron/trainer/start/deck_features.hpp"
#include "support/run_decks.hpp"

namespace nanotron::trainer {
namespace {

using test::decks;
using test::small_deck;

// Latent attention with these changes.
test::Settings latent(const test::Settings& changes = {}) {
  test::Settings set{"model.kv_lora_rank=12", "model.qk_nope_head_dim=6", "model.qk_rope_head_dim=4",
                     "model.v_head_dim=8",    "model.head_dim=0",         "model.num_key_value_heads=0"};
  set.insert(set.end(), changes.begin(), changes.end());
  return set;
}

deck::Config resolved(const test::Settings& changes) {
  deck::Config c = decks.read("", latent(changes));
  trainer::resolve(c, 1);
  return c;
}

TEST(LatentDecks, FillTheWidthOfAHead) {
  const deck::Config c = resolved({"model.q_lora_rank=10"});
  EXPECT_EQ(c.model.head_dim, 10);
  EXPECT_EQ(c.model.num_key_value_heads, c.model.num_attention_heads);
  EXPECT_EQ(decks.message(small_deck, latent({"model.head_dim=10"})), "");
}

TEST(LatentDecks, AreRefusedWhereNothingIsDone) {
  decks.expect_refused({"model.q_lora_rank=8"}, "q_lora_rank belongs to latent attention");
  decks.expect_refused({"model.v_head_dim=8"}, "kv_lora_rank more than 0");
  decks.expect_refused({"model.kv_lora_rank=8"}, "the widths of its heads");
  decks.expect_refused(latent({"model.qk_rope_head_dim=3"}), "an even width");
  decks.expect_refused(latent({"model.v_head_dim=11"}), "at most 10");
  decks.expect_refused(latent({"model.qk_nope_head_dim=254"}), "at most 256");
  decks.expect_refused(latent({"model.head_dim=8"}), "qk_nope_head_dim + qk_rope_head_dim = 10");
  decks.expect_refused(latent({"model.num_key_value_heads=1"}), "a key head for each query head");
  decks.expect_refused(latent({"model.qkv_bias=t"}), "have no biases");
  decks.expect_refused(latent({"model.qk_norm=t"}), "qk_norm = .false.");
  decks.expect_refused(latent({"model.position_embedding_type=learned_absolute", "model.max_position_embeddings=64"}),
                       "rotary positions only");
  decks.expect_refused(latent({"model.partial_rotary_factor=0.5"}), "partial_rotary_factor = 1");
  decks.expect_refused(latent({"precision.compute=fp8"}), "compute = 'bf16'");
  decks.expect_refused(latent({"model.parametrization=mup", "model.base_hidden_size=16"}),
                       "parametrization = 'standard'");
  decks.expect_refused(latent({"precision.tensor_shards=3", "precision.reproducible=layout"}),
                       "does not divide the 8 heads of latent attention");
  EXPECT_EQ(decks.message(small_deck, latent({"model.attention_sinks=t"})), "");
  EXPECT_EQ(decks.message(small_deck, latent({"precision.reproducible=layout"})), "");
}

// Its costs count what the parameter table lists.
TEST(LatentDecks, CostsAreThoseOfTheParameters) {
  for (const char* rank : {"model.q_lora_rank=10", "model.q_lora_rank=0"}) {
    const deck::Config c = resolved({rank, "model.vocab_size=64"});
    double matrices = 0.0;
    for (const nn::ParameterSpec& s : model::make_parameter_table(c.model).specs) {
      if (!s.is_1d && s.name.starts_with("model/layers/self_attn/"))
        matrices += static_cast<double>(s.rows * s.columns);
    }
    EXPECT_EQ(deck::attention_sizes(c.model).matrices, matrices) << rank;
    // Keys are 10 wide and values 8: as many FLOPs as heads of 9.
    const auto flops = [&](std::int64_t length) { return model::training_flops_per_token(c.model, length); };
    EXPECT_DOUBLE_EQ(flops(65) - flops(1),
                     6.0 * 64.0 * 9.0 * static_cast<double>(c.model.num_attention_heads * c.model.num_hidden_layers));
  }
}

}  // namespace
}  // namespace nanotron::trainer
