// ranks: 1
// What &lora asks of a deck.
#include <gtest/gtest.h>

#include "nanotron/trainer/start/deck_features.hpp"
#include "support/run_decks.hpp"

namespace nanotron::trainer {
namespace {

using test::decks;

test::Settings adapted(test::Settings more) {
  more.insert(more.end(), {"lora.rank=4", "lora.base=initial"});
  return more;
}

TEST(LoraDecks, Accepted) {
  for (const char* targets :
       {"*_proj", "q_proj", "q_proj,v_proj", "self_attn.*_proj mlp.down_proj", "model.layers.mlp.up_proj"}) {
    EXPECT_EQ(decks.message(test::small_deck, adapted({std::string("lora.targets=") + targets})), "") << targets;
  }
  EXPECT_EQ(
      decks.message(test::small_deck, adapted({"parallel.tp=2", "parallel.zero_stage=3", "precision.compute=bf16"}), 4),
      "");
}

TEST(LoraDecks, Refused) {
  decks.expect_refused({"lora.rank=4"}, "base names no checkpoint");
  decks.expect_refused({"lora.alpha=4"}, "alpha belongs to adapters");
  decks.expect_refused({"lora.base=initial"}, "base belongs to adapters");
  decks.expect_refused(adapted({"lora.targets=query"}), "some of q_proj, k_proj, v_proj, o_proj, gate_proj");
  decks.expect_refused(adapted({"lora.targets=gate_proj", "model.hidden_act=gelu"}), "fits no linear layer");
  decks.expect_refused(adapted({"moe.num_experts=4"}), "no adapters of a mixture of experts");
  decks.expect_refused(
      adapted({"model.kv_lora_rank=8", "model.qk_nope_head_dim=4", "model.qk_rope_head_dim=4", "model.v_head_dim=4"}),
      "compressed tokens");
  decks.expect_refused(adapted({"lora.targets=!q_proj"}), "fits no linear layer");
  for (const char* name : {"muon", "soap"})
    decks.expect_refused(adapted({std::string("optimizer.name=") + name}), "whole weights of layers");
  decks.expect_refused(adapted({"precision.compute=fp8"}), "no GEMMs of adapters with compute = 'fp8'");
  const std::string layout = "precision.reproducible=layout", tile = "parallel.mlp_tile=2",
                    parts = "precision.context_shards=2";
  for (const std::vector<std::string>& set : {std::vector{layout}, {layout, tile}, {layout, parts}})
    EXPECT_EQ(decks.message(test::small_deck, adapted(set)), "");
  decks.expect_refused(adapted({layout, tile, parts}), "mlp_tile = 0, or context_shards = 1");
}

TEST(LoraDecks, WeightDecayIsOfWhatIsTrained) {
  const auto of = [](const std::string& patterns) { return "optimizer.no_weight_decay=" + patterns; };
  EXPECT_EQ(decks.message(test::small_deck, adapted({of("*lora_B* *q_proj.lora_A.weight")})), "");
  decks.expect_refused(adapted({of("*lora_B* *embed_tokens*")}), "fits '*embed_tokens*'");
  decks.expect_refused({of("*lora_B*")}, "fits '*lora_B*'");
  decks.expect_refused(adapted({of("*lora_B*"), "moe.num_experts=4"}), "no adapters of a mixture of experts");
}

}  // namespace
}  // namespace nanotron::trainer
