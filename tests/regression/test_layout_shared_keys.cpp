// ranks: 1 2 3 4 6 8
// timeout: 1200
// precision%reproducible = 'layout' with more tensor shards than key heads: dk and dv of a head are sums over shards,
// on one rank or on those that share the head. The same bits on every grid.

#include "support/layout_runs.hpp"

namespace nanotron {
namespace {

using Case = test::LayoutCase;
using test::enough, test::two_parts;

class LayoutSharedKeys : public test::LayoutRuns {
 protected:
  // Grids whose ranks share heads.
  void compare_shared(const std::vector<Case>& cases) {
    compare_all(cases, {{2, 1}, {3, 1}, {4, 1}, {6, 1}, {2, 2}, {3, 2}, {4, 2}});
    EXPECT_GE(runs_, enough(ranks_ == 1 ? 6 : 8));
    EXPECT_TRUE(ranks_ == 1 || cut_["tp, stream cut"] + cut_["tp, stream whole"] > 0);
  }
};

// One head for all queries, with other sums over a sequence; two heads, with biases; shards that are no power of two,
// and ranks with a part of one head and a part of the next; masks and sinks of queries; 4 and 7 query heads over 3
// shards, and 4 key heads.
const std::vector<Case> plain{
    {"llama",
     {"precision.compute=fp64", "model.num_key_value_heads=1", "precision.tensor_shards=4",
      "precision.context_shards=4"}},
    {"qwen2",
     {"precision.compute=bf16", "precision.tensor_shards=4", "precision.batch_shards=6",
      "data.document_mask=block_diagonal", "precision.moments=bf16"}},
    {"qwen2",
     {"precision.compute=fp32", "model.num_attention_heads=12", "model.num_key_value_heads=4", "model.head_dim=6",
      "precision.tensor_shards=12", "precision.context_shards=2"}},
    {"llama",
     {"precision.compute=fp64", "model.num_attention_heads=6", "model.num_key_value_heads=1", "model.head_dim=12",
      "precision.tensor_shards=6", "model.attention_sinks=t", "model.sliding_window=7", "model.window_layers=1:1",
      "model.attn_logit_softcapping=3", "model.partial_rotary_factor=0.5"}},
    {"llama",
     {"precision.compute=bf16", "precision.tensor_shards=4", "precision.context_shards=2",
      "model.attention_dropout=0.2", "optimizer.qk_clip=0.01"}},
    {"llama", {"precision.compute=fp64", "precision.tensor_shards=3", "precision.context_shards=2"}},
    {"qwen2",
     {"precision.compute=fp32", "model.num_attention_heads=7", "model.num_key_value_heads=1", "model.head_dim=6",
      "precision.tensor_shards=3", "precision.context_shards=6", "data.sequence_length=23"}},
    {"qwen2",
     {"precision.compute=fp64", "model.num_key_value_heads=4", "precision.tensor_shards=3",
      "precision.batch_shards=6"}},
    {"llama",
     {"precision.compute=fp32", "model.num_key_value_heads=1", "precision.tensor_shards=2",
      "model.num_nextn_predict_layers=1"}},
    {"llama",
     {"precision.compute=fp32", "precision.tensor_shards=4", "optimizer.name=soap", "optimizer.precondition_every=1",
      "optimizer.max_precondition_size=64"}}};

// Ranks with 4 and 2 key heads, of which 3 cp ranks could take none or whole ones: they gather keys instead.
const Case unequal{"qwen2",
                   {"precision.compute=fp32", "model.num_attention_heads=12", "model.num_key_value_heads=6",
                    "model.head_dim=4", "precision.tensor_shards=4", "precision.context_shards=3"}};

const std::vector<Case> norms{
    {"qwen3",
     {"precision.compute=fp32", "model.num_key_value_heads=1", "precision.tensor_shards=4",
      "precision.context_shards=4"}},
    {"qwen3", {"precision.compute=fp64", "precision.tensor_shards=4", "data.document_mask=block_diagonal"}},
    {"qwen3",
     {"precision.compute=bf16", "model.num_attention_heads=6", "model.num_key_value_heads=3", "model.head_dim=8",
      "precision.tensor_shards=6", "precision.context_shards=6", "model.norm_weight=one_plus"}},
    {"qwen3", {"precision.compute=fp64", "precision.tensor_shards=3", "precision.context_shards=2"}},
    {"qwen3",
     {"precision.compute=fp64", "model.num_key_value_heads=1", "precision.tensor_shards=4",
      "model.qk_norm_over=projection"}},
    {"qwen3",
     {"precision.compute=fp32", "precision.tensor_shards=3", "precision.context_shards=6",
      "model.qk_norm_over=projection"}},
    {"qwen3",
     {"precision.compute=fp32", "model.num_attention_heads=12", "model.num_key_value_heads=4", "model.head_dim=6",
      "precision.tensor_shards=12", "precision.context_shards=2", "model.qk_norm_over=projection"}}};

const std::vector<Case> adapters{
    {"qwen2",
     {"precision.compute=fp64", "model.num_key_value_heads=1", "precision.tensor_shards=4", "lora.rank=3",
      "lora.alpha=5", "lora.base=initial", "lora.targets=*_proj", "precision.context_shards=2"}}};

const Case mixture{"qwen3_moe",
                   {"precision.compute=fp64", "model.num_key_value_heads=1", "precision.tensor_shards=4",
                    "precision.context_shards=2"},
                   {2, 4}};

TEST_F(LayoutSharedKeys, SameBits) {
  compare_shared(plain);
  if (ranks_ % 2 == 0) compare(plain[0], two_parts);
  compare(unequal, {"parallel.cp_mode=all_to_all"});
  if (ranks_ % 6 == 0) compare(unequal, {"parallel.cp_mode=all_to_all", "parallel.tp=2", "parallel.cp=3"});
}

TEST_F(LayoutSharedKeys, SameBitsOfNorms) { compare_shared(norms); }

TEST_F(LayoutSharedKeys, SameBitsOfAdaptersAndExperts) {
  for (const Case& c : adapters) compare(c);
  compare(mixture);
  for (const int ep : mixture.ep) {
    if (ranks_ % ep == 0) compare(mixture, {fmt::format("parallel.ep={}", ep)});
  }
  EXPECT_GT(runs_, 0U);
}

TEST_F(LayoutSharedKeys, IsTheSameTraining) {
  if (ranks_ > 1) return;  // one rank is enough
  for (const std::vector<Case>& cases : {plain, norms, adapters, {mixture}}) {
    for (const Case& c : cases) expect_same_training(c);
  }
}

}  // namespace
}  // namespace nanotron
