// ranks: 1
// What the parts of a layer ask of a deck: norms, their places, activations, tiles; of documents, length buckets.
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
  EXPECT_EQ(decks.message(small_deck, {xielu, layout, heads, tokens}), "");
}

TEST(BlockFeatures, LengthBuckets) {
  const std::string buckets = "data.length_buckets=t", documents = "data.sequences=documents",
                    mask = "data.document_mask=block_diagonal";
  EXPECT_EQ(decks.message(small_deck, {buckets, documents, mask}), "");
  decks.expect_refused({buckets}, "sequences = 'documents'");
  decks.expect_refused({buckets, documents, mask, "moe.num_experts=6"}, "or num_experts = 0");
}

TEST(BlockFeatures, TilesOfTheNetwork) {
  const std::string tile = "parallel.mlp_tile=8", experts = "moe.num_experts=6", xielu = "model.hidden_act=xielu",
                    pipeline = "parallel.pp=2";
  EXPECT_EQ(decks.message(small_deck, {tile, "parallel.recompute=full", xielu}), "");
  EXPECT_EQ(decks.message(small_deck, {tile, experts, "moe.expert_layers=1"}), "");
  decks.expect_refused({tile, experts}, "no layer has a dense network");
  decks.expect_refused({tile, "precision.compute=fp8"}, "compute = 'bf16'");
  const std::string layout = "precision.reproducible=layout";
  EXPECT_EQ(decks.message(small_deck, {tile, layout, "precision.context_shards=2"}), "");
  EXPECT_EQ(decks.message(small_deck, {tile, layout, xielu}), "");
  decks.expect_refused({tile, layout, xielu, "precision.context_shards=2"}, "or context_shards = 1");
  decks.expect_refused({tile, "parallel.tp=2", "parallel.tp_mode=reduce_scatter", "parallel.tp_gathered_inputs=keep"},
                       "or tp_gathered_inputs = 'gather_again'", 2);
  const std::string zero_bubble = "parallel.pp_schedule=zero_bubble", layers = "model.num_hidden_layers=4";
  EXPECT_EQ(decks.message(small_deck, {tile, pipeline, zero_bubble, layers}, 2), "");
  decks.expect_refused({tile, pipeline, zero_bubble, layers, xielu}, "or pp_schedule = '1f1b'", 2);
}

}  // namespace
}  // namespace nanotron::trainer
