// ranks: 1 2 3 4 6 8
// timeout: 1200
// precision%reproducible = 'layout': losses, gradient norms, weights and moments have the same bits on every grid that
// the deck allows. The reference is one rank without any of the options.

#include <fmt/ranges.h>

#include <span>

#include "support/layout_runs.hpp"

namespace nanotron {
namespace {

using Case = test::LayoutCase;
using test::enough, test::expect_same_bits, test::runs_of_case, test::two_parts;
const std::int64_t steps = test::layout_steps;

class Layout : public test::LayoutRuns {};

const std::vector<Case> cases{
    {"llama", {"precision.compute=fp64", "model.num_key_value_heads=4", "precision.tensor_shards=4"}},
    {"llama",
     {"precision.compute=fp32", "model.num_key_value_heads=4", "precision.context_shards=4", "precision.moments=bf16"}},
    {"qwen2", {"precision.compute=bf16", "precision.tensor_shards=2", "precision.batch_shards=6"}},
    {"qwen3", {"precision.compute=fp32", "precision.batch_shards=12", "data.document_mask=block_diagonal"}},
    {"llama",
     {"precision.compute=fp64", "model.num_attention_heads=6", "model.num_key_value_heads=6", "model.head_dim=8",
      "precision.tensor_shards=6", "precision.context_shards=2"}},
    {"llama",
     {"precision.compute=bf16", "model.num_key_value_heads=4", "precision.context_shards=2",
      "precision.tensor_shards=4", "precision.moments=bf16"}},
    {"llama",
     {"precision.compute=fp64", "model.num_key_value_heads=4", "precision.tensor_shards=4", "model.norm_placement=post",
      "model.hidden_act=xielu"}},
    {"llama",
     {"precision.compute=fp32", "model.num_key_value_heads=4", "precision.tensor_shards=1",
      "precision.context_shards=4", "model.norm_placement=sandwich", "model.norm_weight=one_plus",
      "model.hidden_act=xielu"}},
    {"qwen2",
     {"precision.compute=bf16", "precision.tensor_shards=2", "model.parallel_residual=two_norms",
      "model.hidden_act=swiglu_clamped", "model.swiglu_limit=0.02"}},
    {"llama",
     {"precision.compute=fp32", "model.num_key_value_heads=4", "precision.context_shards=2",
      "precision.tensor_shards=4", "model.attention_sinks=t", "model.sliding_window=7", "model.window_layers=1:1",
      "model.attn_logit_softcapping=3", "model.partial_rotary_factor=0.5"}},
    {"qwen3",
     {"precision.compute=fp64", "model.num_key_value_heads=4", "precision.tensor_shards=4",
      "model.qk_norm_over=projection"}},
    {"llama",
     {"precision.compute=bf16", "model.kv_lora_rank=12", "model.q_lora_rank=10", "model.qk_nope_head_dim=6",
      "model.qk_rope_head_dim=4", "model.v_head_dim=8", "model.head_dim=0", "model.num_key_value_heads=0",
      "precision.tensor_shards=4", "precision.context_shards=2"}},
    {"qwen2",
     {"precision.compute=bf16", "precision.tensor_shards=4", "precision.context_shards=2",
      "model.num_key_value_heads=4", "model.embedding_multiplier=3", "model.embedding_norm=true",
      "model.logits_scaling=0.5", "model.final_logit_softcapping=2", "optimizer.z_loss_coefficient=0.02",
      "optimizer.no_weight_decay=!*", "optimizer.ema_decay=0.7"}},
    {"llama",
     {"precision.compute=bf16", "precision.tensor_shards=4", "precision.context_shards=2",
      "model.num_key_value_heads=4", "model.hidden_dropout=0.1", "model.attention_dropout=0.2"}},
    {"qwen2",
     {"precision.compute=bf16", "precision.tensor_shards=2", "precision.context_shards=2",
      "data.document_mask=block_diagonal", "optimizer.qk_clip=0.01"}},
    {"qwen2",
     {"precision.compute=fp64", "precision.tensor_shards=2", "precision.batch_shards=6", "model.hidden_dropout=0.2",
      "model.attention_dropout=0.1", "data.document_mask=block_diagonal"}},
    {"llama",
     {"precision.compute=bf16", "model.num_key_value_heads=4", "precision.tensor_shards=4",
      "model.num_nextn_predict_layers=2"}},
    {"llama",
     {"precision.compute=fp32", "model.num_key_value_heads=4", "precision.tensor_shards=4", "optimizer.name=soap",
      "optimizer.precondition_every=1", "optimizer.max_precondition_size=64", "precision.moments=bf16"}},
    {"qwen2", {"precision.compute=bf16", "precision.tensor_shards=2", "optimizer.name=muon", "optimizer.qk_clip=0.01"}},
    {"qwen3",
     {"precision.compute=fp64", "precision.tensor_shards=2", "precision.batch_shards=6",
      "data.document_mask=block_diagonal", "model.num_nextn_predict_layers=1", "optimizer.mtp_loss_coefficient=1"}}};

// Sequences whose shards differ by a token, with key-value heads that more ranks gather than divide them.
const std::vector<Case> uneven{
    {"llama",
     {"precision.compute=fp64", "precision.tensor_shards=2", "precision.context_shards=12", "data.sequence_length=23",
      "parallel.compression=bf16"}},
    {"qwen2",
     {"precision.compute=fp32", "precision.tensor_shards=1", "precision.context_shards=8", "data.sequence_length=21",
      "model.sliding_window=7", "model.attention_sinks=t", "data.document_mask=block_diagonal", "parallel.mlp_tile=2"}},
    {"qwen3",
     {"precision.compute=bf16", "precision.tensor_shards=1", "precision.context_shards=6", "data.sequence_length=25",
      "parallel.mlp_tile=3", "model.attention_dropout=0.2", "optimizer.qk_clip=0.01"}},
    {"llama",
     {"precision.compute=fp32", "precision.tensor_shards=1", "precision.context_shards=4", "data.sequence_length=29",
      "model.normalization=layer_norm", "model.rms_norm_eps=1e-5", "model.hidden_act=relu", "model.qkv_bias=t",
      "model.o_proj_bias=t", "model.mlp_bias=t", "parallel.mlp_tile=4"}},
    {"llama",
     {"precision.compute=fp64", "precision.tensor_shards=1", "precision.context_shards=8", "data.sequence_length=27",
      "model.hidden_act=xielu", "model.qk_norm=t", "model.qk_norm_over=projection"}},
    {"llama",
     {"precision.compute=bf16", "model.kv_lora_rank=12", "model.q_lora_rank=10", "model.qk_nope_head_dim=6",
      "model.qk_rope_head_dim=4", "model.v_head_dim=8", "model.head_dim=0", "model.num_key_value_heads=0",
      "precision.tensor_shards=4", "precision.context_shards=4", "data.sequence_length=22"}}};
// Mixtures of experts: with a shared one, renormalised weights, and a capacity.
const std::vector<Case> mixtures{
    {"qwen2_moe",
     {"precision.compute=fp64", "model.num_key_value_heads=4", "precision.tensor_shards=4",
      "precision.context_shards=2"},
     {2, 3, 6}},
    {"qwen3_moe",
     {"precision.compute=bf16", "precision.tensor_shards=2", "precision.batch_shards=6", "precision.moments=bf16",
      "model.mlp_bias=t"},
     {2, 4, 8}},
    {"mixtral",
     {"precision.compute=fp32", "model.num_key_value_heads=4", "precision.tensor_shards=2",
      "precision.context_shards=4", "moe.capacity_factor=1", "model.mlp_bias=t"},
     {2, 4}},
    {"qwen2_moe",
     {"precision.compute=fp64", "model.num_key_value_heads=4", "precision.tensor_shards=4",
      "precision.context_shards=6", "data.sequence_length=23", "parallel.compression=bf16"},
     {2, 3, 6}}};
// Head and embedding have several uses, each a sum over the shards of a sequence.
const std::vector<Case> later{
    {"llama",
     {"precision.compute=fp32", "model.num_key_value_heads=4", "precision.tensor_shards=4",
      "precision.context_shards=4", "model.num_nextn_predict_layers=2"}},
    {"llama",
     {"precision.compute=bf16", "precision.tensor_shards=2", "precision.context_shards=6", "data.sequence_length=23",
      "model.num_nextn_predict_layers=2", "model.tie_word_embeddings=.true."}},
    {"qwen3",
     {"precision.compute=fp64", "precision.tensor_shards=1", "precision.context_shards=2",
      "data.document_mask=block_diagonal", "model.num_nextn_predict_layers=1", "optimizer.z_loss_coefficient=0.02",
      "parallel.mlp_tile=3"}},
    {"qwen2_moe",
     {"precision.compute=fp32", "precision.tensor_shards=2", "precision.context_shards=4",
      "model.num_nextn_predict_layers=2"},
     {2, 4}}};
// Head and embedding share their weights.
const std::vector<Case> tied{
    {"llama",
     {"precision.compute=fp64", "model.num_key_value_heads=4", "precision.tensor_shards=4",
      "model.tie_word_embeddings=.true."}},
    {"qwen2",
     {"precision.compute=bf16", "precision.tensor_shards=2", "precision.batch_shards=6",
      "model.tie_word_embeddings=.true."}},
    {"qwen3",
     {"precision.compute=fp32", "precision.context_shards=2", "precision.tensor_shards=1",
      "model.tie_word_embeddings=.true."}},
    {"llama",
     {"precision.compute=fp32", "model.num_key_value_heads=4", "precision.tensor_shards=4", "precision.batch_shards=4",
      "model.tie_word_embeddings=.true.", "model.num_nextn_predict_layers=1"}}};
// Gradients of 24 shards of the batch, each rounded to bf16, for up to 8 replicas.
const std::vector<Case> rounded{
    {"llama",
     {"precision.compute=fp32", "model.num_key_value_heads=4", "precision.tensor_shards=4", "parallel.compression=bf16",
      "data.global_batch_size=24"}},
    {"qwen2",
     {"precision.compute=bf16", "precision.tensor_shards=2", "precision.batch_shards=24", "parallel.compression=bf16",
      "data.global_batch_size=48"}},
    {"qwen3",
     {"precision.compute=fp64", "precision.tensor_shards=1", "model.tie_word_embeddings=.true.",
      "parallel.compression=bf16", "data.global_batch_size=24"}}};
const Case rounded_mixture{
    "qwen3_moe", {"precision.tensor_shards=2", "parallel.compression=bf16", "data.global_batch_size=24"}, {2, 4, 8}};
const std::vector<std::string> only_dp{"parallel.tp=1", "parallel.pp=1", "parallel.cp=1"};

TEST_F(Layout, SameBitsOnEveryGrid) {
  for (const Case& c : cases) compare(c);
  EXPECT_GE(runs_, enough(ranks_ == 1 ? 12 : 8));
  EXPECT_TRUE(ranks_ % 2 != 0 || cut_["tp, stream cut"] > 0 || !test::all_runs());
}

// Latent attention multiplies compressed tokens, which the ranks gather, and hidden states of their own rows alone.
TEST_F(Layout, SameBitsOfShardedRowsOfLatentAttention) {
  for (const Case& c : cases) {
    if (std::ranges::find(c.set, "model.kv_lora_rank=12") == c.set.end()) continue;
    for (const char* tp : {"2", "4"}) {
      if (ranks_ % std::atoi(tp) == 0)
        compare(c, {"parallel.tp_mode=reduce_scatter", fmt::format("parallel.tp={}", tp)});
    }
  }
  EXPECT_EQ(cut_["tp, stream whole"], 0);
  EXPECT_TRUE(ranks_ % 2 != 0 || cut_["tp, stream cut"] > 0);
}

// The gradients of inputs of several micro-batches in front of those of weights.
TEST_F(Layout, SameBitsWithBackwardInTwoParts) {
  if (ranks_ % 2 != 0) return;
  for (const Case& c : cases) compare(c, two_parts);
  EXPECT_GE(runs_, enough(12));
}

TEST_F(Layout, SameBitsOfUnequalShardsOfASequence) {
  for (const Case& c : uneven) compare(c);
  if (ranks_ % 2 == 0) compare(uneven[3], two_parts);
  EXPECT_GE(runs_, enough(ranks_ == 1 ? 6 : 12));
  EXPECT_TRUE(ranks_ == 1 || cut_["cp"] > 0 || !test::all_runs());
}

TEST_F(Layout, SameBitsOfTiedWords) {
  for (const Case& c : tied) {
    compare(c);
    if (ranks_ % 2 == 0) compare(c, two_parts);
  }
  EXPECT_GE(runs_, enough(ranks_ == 1 ? 6 : 8));
}

TEST_F(Layout, SameBitsOfLaterTokensOfPartsOfSequences) {
  for (const Case& c : later) compare(c);
  if (ranks_ % 2 == 0) compare(later[2], two_parts);
  EXPECT_GE(runs_, enough(ranks_ == 1 ? 4 : 8));
  EXPECT_TRUE(ranks_ == 1 || cut_["cp"] > 0 || !test::all_runs());
}

TEST_F(Layout, SameBitsOfGradientsRoundedToBf16) {
  for (const Case& c : rounded) {
    compare(c);
    compare(c, only_dp);
    EXPECT_TRUE(ranks_ == 1 || cut_["dp"] > 0);
  }
  if (ranks_ % 2 == 0) compare(rounded[1], two_parts);
  compare(rounded_mixture);
  for (const int ep : rounded_mixture.ep) {
    if (ranks_ % ep == 0) compare(rounded_mixture, {fmt::format("parallel.ep={}", ep)});
  }
  deck::Config config = *config_of(rounded[0], {"parallel.dp=0"});
  const test::Numbers ours = test::serial(config, steps);
  config.parallel.compression = deck::Compression::none;
  EXPECT_NE(ours.parameters, test::serial(config, steps).parameters) << "nothing was rounded";
}

TEST_F(Layout, SameBitsOfExperts) {
  for (const Case& c : mixtures) compare(c);
  if (ranks_ % 2 == 0) compare(mixtures[0], two_parts);
  EXPECT_GE(runs_, enough(ranks_ == 1 ? 6 : 8));
}

TEST_F(Layout, SameBitsOfExpertsOverRanks) {
  if (ranks_ == 1) return;
  for (const Case& c : mixtures) {
    for (const int ep : c.ep) {
      const auto of_ep = fmt::format("parallel.ep={}", ep);
      if (ranks_ % ep == 0) compare(c, {of_ep, "parallel.ep_messages=by_node"});
      if (ranks_ % ep + ep % 2 == 0) compare(c, {of_ep, "parallel.expert_tp=1", "parallel.tp=2"});
    }
  }
  EXPECT_TRUE(cut_["ep, several sequences"] > 0 || !test::all_runs());
}

// A checkpoint continues from any grid to any other: the bits of the run that was never interrupted.
TEST_F(Layout, SameBitsBehindACheckpointOfAnotherGrid) {
  for (const Case& c : {cases[1], cases[2]}) {
    const auto runs = draw(c, {}, std::max<std::size_t>(2, runs_of_case));
    ASSERT_GE(runs.size(), 1U);
    const test::Numbers reference = test::serial(runs[0].second, 2 * steps);
    for (std::size_t i = 0; i + 1 < std::min<std::size_t>(runs.size(), 4); ++i) {
      const test::TemporaryFolder folder(test::world(), "layout_resume");
      deck::Config first = runs[i].second, second = runs[i + 1].second;
      SCOPED_TRACE(runs[i].first + ", then " + runs[i + 1].first);
      first.checkpoint.directory = second.checkpoint.directory = folder.path().string();
      second.checkpoint.resume = "auto";
      test::run_training(first, test::world(), steps, true);
      const test::Numbers ours = test::run_training(second, test::world(), 2 * steps);
      EXPECT_TRUE(std::ranges::equal(ours.losses, std::span(reference.losses).last(static_cast<std::size_t>(steps))));
      expect_same_bits(ours.parameters, reference.parameters);
      expect_same_bits(ours.exp_avg, reference.exp_avg);
      expect_same_bits(ours.exp_avg_sq, reference.exp_avg_sq);
    }
  }
}

TEST_F(Layout, IsTheSameTraining) {
  if (ranks_ > 1) return;              // one rank is enough
  std::vector<Case> compared = cases;  // experts in fp64: others choose other ones
  compared.push_back(mixtures[0]);
  compared.push_back({"qwen3_moe", {"precision.compute=fp64", "precision.tensor_shards=2", "model.mlp_bias=t"}});
  for (const Case& c : compared) expect_same_training(c);
}

}  // namespace
}  // namespace nanotron
