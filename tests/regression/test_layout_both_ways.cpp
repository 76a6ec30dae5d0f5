// ranks: 1 2 3 4 6 8
// timeout: 1200
// precision%reproducible = 'layout' of gradients that are sums over heads or columns, in T parts, and over the tokens
// of a sequence, in C parts: those of head norms and of xIELU's scalars. The same bits on every grid.

#include "support/layout_runs.hpp"

namespace nanotron {
namespace {

using Case = test::LayoutCase;
using test::enough, test::two_parts;

class LayoutBothWays : public test::LayoutRuns {
 protected:
  // Grids that split both kinds of parts.
  void compare_both(const std::vector<Case>& cases) {
    compare_all(cases, {{2, 1}, {2, 2}, {2, 3}, {3, 2}, {2, 4}, {4, 2}});
    EXPECT_GE(runs_, enough(ranks_ == 1 ? 6 : 12));
    EXPECT_TRUE(ranks_ % 4 != 0 || (cut_["cp"] > 0 && cut_["tp, stream cut"] + cut_["tp, stream whole"] > 0));
  }
};

const std::vector<Case> head_norms{
    {"qwen3",
     {"precision.compute=fp64", "model.num_key_value_heads=4", "precision.tensor_shards=4",
      "precision.context_shards=4"}},
    {"qwen3",
     {"precision.compute=bf16", "precision.tensor_shards=2", "precision.context_shards=12", "data.sequence_length=23",
      "data.document_mask=block_diagonal", "precision.moments=bf16"}},
    // Parts whose numbers are no powers of two, and a norm that is added to 1.
    {"qwen3",
     {"precision.compute=fp32", "model.num_attention_heads=6", "model.num_key_value_heads=6", "model.head_dim=8",
      "precision.tensor_shards=6", "precision.context_shards=6", "model.norm_weight=one_plus", "parallel.mlp_tile=3"}},
    {"qwen3",
     {"precision.compute=fp32", "precision.tensor_shards=2", "precision.context_shards=4",
      "model.num_nextn_predict_layers=1"}}};

TEST_F(LayoutBothWays, SameBitsOfHeadNorms) {
  compare_both(head_norms);
  if (ranks_ % 2 == 0) compare(head_norms[0], two_parts);
}

TEST_F(LayoutBothWays, SameBitsOfHeadNormsOfMixtures) {
  const Case mixture{"qwen3_moe",
                     {"precision.compute=fp32", "model.num_key_value_heads=4", "precision.tensor_shards=4",
                      "precision.context_shards=2"},
                     {2, 4}};
  compare(mixture);
  for (const int ep : mixture.ep) {
    if (ranks_ % ep == 0) compare(mixture, {fmt::format("parallel.ep={}", ep)});
  }
  EXPECT_GT(runs_, 0U);
}

TEST_F(LayoutBothWays, SameBitsOfXielu) {
  compare_both(
      {{"llama",
        {"precision.compute=fp64", "model.num_key_value_heads=4", "precision.tensor_shards=4",
         "precision.context_shards=4", "model.hidden_act=xielu"}},
       {"llama",
        {"precision.compute=bf16", "precision.tensor_shards=2", "precision.context_shards=6", "data.sequence_length=23",
         "model.hidden_act=xielu", "model.qk_norm=t"}},
       {"llama",
        {"precision.compute=fp32", "model.num_attention_heads=6", "model.num_key_value_heads=6", "model.head_dim=8",
         "precision.tensor_shards=6", "precision.context_shards=6", "model.hidden_act=xielu"}},
       {"llama",
        {"precision.compute=fp64", "model.num_key_value_heads=4", "precision.tensor_shards=4", "model.hidden_act=xielu",
         "parallel.mlp_tile=5"}}});
}

// alpha / rank is no power of two.
const std::vector<std::string> adapted{"lora.rank=3", "lora.alpha=5", "lora.base=initial"};

Case with_adapters(const char* model, const char* targets, std::vector<std::string> set) {
  set.insert(set.end(), adapted.begin(), adapted.end());
  set.push_back(fmt::format("lora.targets={}", targets));
  return {model, set};
}

TEST_F(LayoutBothWays, SameBitsOfAdapters) {
  const std::vector<Case> cases{
      with_adapters("llama", "*_proj",
                    {"precision.compute=fp64", "model.num_key_value_heads=4", "precision.tensor_shards=4",
                     "precision.context_shards=4"}),
      with_adapters("qwen3", "q_proj v_proj o_proj up_proj down_proj",
                    {"precision.compute=bf16", "precision.tensor_shards=2", "precision.context_shards=6",
                     "data.sequence_length=23", "precision.moments=bf16"}),
      with_adapters(
          "qwen2", "*_proj",
          {"precision.compute=fp32", "model.num_attention_heads=6", "model.num_key_value_heads=6", "model.head_dim=8",
           "precision.tensor_shards=6", "precision.context_shards=2", "data.document_mask=block_diagonal"}),
      with_adapters("llama", "*_proj",
                    {"precision.compute=bf16", "model.num_key_value_heads=4", "precision.tensor_shards=4",
                     "precision.batch_shards=6", "parallel.mlp_tile=5"}),
      with_adapters("qwen2", "*_proj",
                    {"precision.compute=fp32", "precision.tensor_shards=2", "model.parallel_residual=two_norms",
                     "parallel.compression=bf16"})};
  compare_both(cases);
  if (ranks_ % 2 == 0) compare(cases[0], two_parts);
}

}  // namespace
}  // namespace nanotron
