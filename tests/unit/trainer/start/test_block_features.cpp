// ranks: 1
// What the parts of a layer ask of a deck: norms, their places, activations.
#include <gtest/gtest.h>

#include "nanotron/trainer/start/deck_features.hpp"
#include "support/run_decks.hpp"

namespace nanotron::trainer {
namespace {

using test::decks;
using test::small_deck;

TEST(BlockFeatures, RefuseWhatTheyCannotDo) {
  const std::string layer_norm = "model.normalization=layer_norm", none = "model.norm_weight=none";
  EXPECT_EQ(decks.message(small_deck, {layer_norm, "model.norm_bias=f", "model.norm_weight=one_plus"}), "");
  EXPECT_EQ(decks.message(small_deck, {layer_norm, none, "model.parallel_residual=one_norm"}), "");
  decks.expect_refused({"model.norm_bias=f"}, "norm_bias belongs to LayerNorm");
  decks.expect_refused({none, "model.qk_norm=t"}, "norms of queries and keys have weights");
  decks.expect_refused({"model.norm_placement=post", "model.parallel_residual=two_norms"}, "norm_placement = 'pre'");

  const std::string clamped = "model.hidden_act=swiglu_clamped", experts = "moe.num_experts=4";
  EXPECT_EQ(decks.message(small_deck, {clamped, "model.swiglu_limit=5", experts}), "");
  decks.expect_refused({"model.swiglu_alpha=1.5"}, "swiglu_alpha belongs to clamped SwiGLU");
  decks.expect_refused({clamped, "model.swiglu_limit=0"}, "> 0");
  decks.expect_refused({"model.hidden_act=xielu", experts}, "experts are gated networks");
  const std::string xielu = "model.hidden_act=xielu", heads = "precision.tensor_shards=2",
                    tokens = "precision.context_shards=2", layout = "precision.reproducible=layout";
  EXPECT_EQ(decks.message(small_deck, {xielu, layout, heads}), "");
  decks.expect_refused({xielu, layout, heads, tokens}, "the gradients of xIELU's scalars");
}

}  // namespace
}  // namespace nanotron::trainer
