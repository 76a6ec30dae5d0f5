#pragma once

// The options of a run as axes with their values, and draws of decks that are legal on so many ranks.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "support/drawn_decks.hpp"

namespace nanotron::test {

// The values of all axes of one run, each an index into its list of choices. Of an axis without a group they are lists
// of keys; other values may be followed by keys.
struct Axis {
  const char* name;
  std::vector<std::string> values;
};
inline const std::vector<Axis> axes{
    {"parallel.tp", {"1", "2", "3", "4"}},
    {"parallel.pp", {"1", "2", "3", "4"}},
    {"parallel.cp", {"1", "2", "3", "4"}},
    {"parallel.ep", {"1", "2", "3", "4"}},
    {"parallel.expert_tp", {"0", "1"}},
    {"parallel.ep_overlap", {"f", "t"}},
    {"parallel.ep_messages", {"by_rank", "by_node parallel.ep_nodes=2"}},
    {"parallel.zero_stage", {"0", "1", "2", "3"}},
    {"parallel.zero_size", {"0", "2"}},
    {"parallel.compression", {"none", "bf16"}},
    {"parallel.tp_mode", {"all_reduce", "reduce_scatter"}},
    {"parallel.tp_overlap_chunks", {"1", "2", "3"}},
    {"parallel.tp_gathered_inputs", {"gather_again", "keep"}},
    {"parallel.cp_mode", {"ring", "all_to_all"}},
    {"parallel.cp_all_to_all", {"1", "2"}},
    {"parallel.pp_schedule", {"gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"}},
    {"parallel.recompute", {"none", "selective", "full"}},
    {"parallel.recompute_layers", {"all", "2:1"}},
    {"parallel.recompute_dispatch", {"f", "t"}},
    {"parallel.offload_layers", {"0", "2"}},
    {"parallel.mlp_tile", {"0", "4"}},
    {"data.micro_batch_size", {"1", "2"}},
    {"data.document_mask", {"none", "block_diagonal"}},
    {"data.sequences", {"stream", "documents"}},
    {"data.length_buckets", {"f", "t"}},
    {"attention",
     {"", "model.qk_norm=t model.qk_norm_over=projection", "model.attention_sinks=t",
      "model.attention_sinks=t model.sliding_window=5 model.window_layers=1:1",
      "model.attn_logit_softcapping=2 model.attention_multiplier=0.4 model.sliding_window=7 model.window_layers=1:1",
      "model.position_embedding_type=alibi model.sliding_window=9", "model.position_embedding_type=none",
      "model.partial_rotary_factor=0.5 model.rope_interleaved=t model.rope_type=linear model.rope_factor=2",
      "model.rope_type=dynamic model.rope_factor=2 model.original_max_position_embeddings=8",
      "model.kv_lora_rank=10 model.q_lora_rank=12 model.qk_nope_head_dim=6 model.qk_rope_head_dim=4 model.v_head_dim=7 "
      "model.head_dim=0 model.num_key_value_heads=0 model.rope_interleaved=t",
      "model.kv_lora_rank=9 model.qk_nope_head_dim=5 model.qk_rope_head_dim=4 model.v_head_dim=9 model.head_dim=0 "
      "model.num_key_value_heads=0 model.qkv_bias=f model.qk_norm=f",
      "model.sliding_window=5 model.window_layers=2:1 model.rope_layers=!4-5 model.rope_local_theta=50",
      "model.rope_type=yarn model.rope_factor=4 model.original_max_position_embeddings=8 model.rope_beta_fast=2 "
      "model.rope_truncate=f model.rope_attention_factor=1.2",
      "model.rope_type=longrope model.rope_factor=4 model.original_max_position_embeddings=8 "
      "model.partial_rotary_factor=0.25 model.rope_short_factor=1.5 model.rope_long_factor=2.5",
      "model.position_embedding_type=learned_absolute model.max_position_embeddings=13"}},
    // Norms of small outputs amplify rounding: weights are larger, steps smaller. So does AdamW of small gradients: eps
    // is in all runs.
    {"block",
     {"", "model.norm_placement=post model.hidden_act=xielu model.initializer_range=0.1 optimizer.learning_rate=1e-4",
      "model.norm_placement=sandwich model.norm_weight=one_plus model.hidden_act=geglu_tanh "
      "model.initializer_range=0.1",
      "model.parallel_residual=two_norms model.normalization=layer_norm model.rms_norm_eps=1e-5 model.hidden_act=relu2",
      "model.parallel_residual=one_norm model.normalization=layer_norm model.rms_norm_eps=1e-5 model.norm_bias=f "
      "model.hidden_act=swiglu_clamped model.swiglu_limit=0.02",
      "model.norm_weight=none model.hidden_act=geglu", "model.residual_multiplier=0.3",
      "model.hidden_act=relu model.qkv_bias=t model.o_proj_bias=t model.mlp_bias=t",
      "model.parallel_residual=one_norm model.normalization=layer_norm model.rms_norm_eps=1e-5 "
      "model.hidden_act=gelu_new model.qkv_bias=t model.o_proj_bias=t model.mlp_bias=t"}},
    {"dropout",
     {"", "model.attention_dropout=0.2", "model.hidden_dropout=0.1",
      "model.hidden_dropout=0.2 model.attention_dropout=0.1"}},
    {"routing",
     {"",
      "moe.router_score=sigmoid moe.n_group=2 moe.topk_group=1 moe.num_experts_per_tok=2 moe.n_shared_experts=1 "
      "moe.shared_expert_intermediate_size=0 moe.routed_scaling_factor=2 moe.router_bias=t "
      "moe.router_bias_update_rate=0.02 moe.router_z_loss_coef=0 moe.expert_layers=!0-1,7",
      "moe.router_score=sigmoid moe.norm_topk_prob=f moe.router_z_loss_coef=0 moe.expert_layers=2:1",
      "moe.router_bias=t moe.n_shared_experts=2 moe.shared_expert_intermediate_size=0 moe.expert_layers=!2:1",
      "moe.router_bias=t moe.shared_expert_intermediate_size=0 model.mlp_bias=t model.hidden_act=swiglu_clamped"}},
    {"ends",
     {"",
      "model.embedding_multiplier=3 model.embedding_norm=true model.logits_scaling=0.5 "
      "model.final_logit_softcapping=2 optimizer.z_loss_coefficient=0.02 optimizer.no_weight_decay=!*,*embed_tokens* "
      "optimizer.ema_decay=0.7",
      "model.lm_head_bias=t model.final_logit_softcapping=2 optimizer.z_loss_coefficient=0.02",
      "model.lm_head_bias=t model.tie_word_embeddings=t data.goldfish_k=3 data.goldfish_h=2"}},
    {"adapters",
     {"", "lora.rank=3 lora.base=initial", "lora.rank=2 lora.targets=q_proj,v_proj,down_proj lora.base=initial"}},
    // No update that divides by a small number, nor by sign, nor by eigenvectors: Lion and SOAP are in
    // test_optimizers.cpp.
    {"optimizer",
     {"", "optimizer.name=ademamix optimizer.beta3=0.99 optimizer.alpha_warmup_steps=5",
      "optimizer.name=schedule_free_adamw", "optimizer.name=ademamix optimizer.beta3=0.9 optimizer.qk_clip=0.01",
      "optimizer.qk_clip=0.005"}},
    {"pairs", {"", "preference.beta=0.4 data.sequences=pairs"}},
    {"later", {"", "model.num_nextn_predict_layers=1", "model.num_nextn_predict_layers=2"}},
    {"model", {"llama", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe"}},
};
using Choice = std::vector<std::size_t>;  // by axis

inline std::string text(const Choice& choice) {
  std::string out;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    const std::string name = axes[a].name;
    out += fmt::format("{}{} {}", a > 0 ? ", " : "", name.substr(name.find('.') + 1), axes[a].values[choice[a]]);
  }
  return out;
}

inline const std::string& value_of(const Choice& choice, std::string_view axis) {
  const auto found = std::ranges::find_if(axes, [&](const Axis& a) { return a.name == axis; });
  return found->values[choice[static_cast<std::size_t>(found - axes.begin())]];
}

// Whether a deck is worth being read: others would be refused for their degrees, or for experts in a dense model.
inline bool may_be_legal(const Choice& choice, int ranks) {
  const auto degree = [&](const char* axis) { return std::stoi(value_of(choice, axis)); };
  if (ranks % (degree("parallel.tp") * degree("parallel.pp") * degree("parallel.cp")) != 0) return false;
  const std::string& model = value_of(choice, "model");
  const bool is_dense = model.find("_moe") == std::string::npos && model != "mixtral";
  // A run that is followed where gradients are rounded has no tensor parallelism: there experts of ep / tp ranks have
  // the same gradients as whole ones of ep ranks, and other degrees have none to follow.
  if (degree("parallel.expert_tp") == 1 && value_of(choice, "parallel.compression") != "none" &&
      degree("parallel.ep") % degree("parallel.tp") != 0)
    return false;
  return !is_dense || (value_of(choice, "routing").empty() && degree("parallel.ep") == 1);
}

// The keys of a choice, with what all of its runs have.
inline std::vector<std::string> keys_of(const Choice& choice, const TokensOfDocuments& tokens) {
  std::vector<std::string> set{"model.num_hidden_layers=9", "checkpoint.resume=none", "checkpoint.at_end=false",
                               "data.sequence_length=13",   "parallel.dp=0",          "optimizer.eps=1e-3",
                               "data.path=" + tokens.path()};
  for (std::size_t a = 0; a + 1 < axes.size(); ++a) {
    const std::string name = axes[a].name, &value = axes[a].values[choice[a]];
    const bool is_key = name.find('.') != std::string::npos;
    if (name == "pairs" && !value.empty()) set.push_back("data.path=" + tokens.path_of_pairs());
    std::istringstream keys(is_key ? name + "=" + value : value);
    set.insert(set.end(), std::istream_iterator<std::string>(keys), {});
  }
  return set;
}

// Option after option is drawn, in a random order, and kept where the deck allows it.
class DrawnChoices {
 public:
  DrawnChoices(const TokensOfDocuments& tokens, int ranks, unsigned seed)
      : tokens_(&tokens), ranks_(ranks), random_(seed), order_(axes.size()) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
  }

  std::pair<Choice, deck::Config> next() {
    Choice choice(axes.size(), 0);
    std::optional<deck::Config> config;
    while (!config) {  // of a grid, the first axes, and of a model, the last
      for (std::size_t axis = 0; axis < 5; ++axis) choice[axis] = random_() % axes[axis].values.size();
      choice.back() = random_() % axes.back().values.size();
      if (may_be_legal(choice, ranks_)) config = config_of(choice);
    }
    for (std::size_t n = order_.size(); n > 1; --n) std::swap(order_[n - 1], order_[random_() % n]);
    for (const std::size_t axis : order_) {
      Choice next = choice;
      next[axis] = random_() % axes[axis].values.size();
      if (next == choice || !may_be_legal(next, ranks_)) continue;
      if (auto found = config_of(next)) {
        choice = next;
        config = std::move(found);
      }
    }
    return {choice, *config};
  }

 private:
  // Nothing when the deck is refused.
  std::optional<deck::Config> config_of(const Choice& choice) const {
    return deck_if_legal(axes.back().values[choice.back()], keys_of(choice, *tokens_), ranks_);
  }

  const TokensOfDocuments* tokens_;
  int ranks_;
  std::mt19937 random_;
  std::vector<std::size_t> order_;
};

}  // namespace nanotron::test
