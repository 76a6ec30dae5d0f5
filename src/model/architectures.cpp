#include "nanotron/model/architectures.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <vector>

namespace nanotron::model {
namespace {

using deck::ModelConfig;

enum class Bias { never, always, any, as_o_proj, as_mlp };
enum class KeyHeads { any, all, one_or_all };                  // of the attention heads
enum class Experts { none, of_mlp_size, shared, not_shared };  // of_mlp_size: of intermediate_size, weights normed
enum class Body { llama, orion, starcoder2, gpt2 };            // norm, activation and positions

// A row per architecture that nanotron-convert writes: WRITTEN in tools/nanotron_tools/hf_config.py, whose
// `differences` has the same rules.
struct Architecture {
  const char* name;
  Body body = Body::llama;
  Bias qkv = Bias::never, o_proj = Bias::never, mlp = Bias::never;
  bool qk_norm = false;
  bool has_window = false;
  bool has_head_dim = true;  // else it is hidden_size / num_attention_heads
  KeyHeads key_heads = KeyHeads::any;
  Experts experts = Experts::none;

  bool has_layer_norm() const { return body != Body::llama; }
  bool is_gated() const { return body == Body::llama || body == Body::orion; }
  bool has_learned_positions() const { return body == Body::gpt2; }
};

constexpr Architecture architectures[] = {
    {.name = "LlamaForCausalLM", .qkv = Bias::as_o_proj, .o_proj = Bias::any, .mlp = Bias::any},
    {.name = "MistralForCausalLM", .has_window = true},
    {.name = "Qwen2ForCausalLM", .qkv = Bias::always},
    {.name = "Qwen3ForCausalLM", .qkv = Bias::as_o_proj, .o_proj = Bias::any, .qk_norm = true},
    {.name = "MixtralForCausalLM", .experts = Experts::of_mlp_size},
    {.name = "Qwen2MoeForCausalLM", .qkv = Bias::any, .experts = Experts::shared},
    {.name = "Qwen3MoeForCausalLM",
     .qkv = Bias::as_o_proj,
     .o_proj = Bias::any,
     .qk_norm = true,
     .experts = Experts::not_shared},
    {.name = "GPT2LMHeadModel",
     .body = Body::gpt2,
     .qkv = Bias::always,
     .o_proj = Bias::always,
     .mlp = Bias::always,
     .has_head_dim = false,
     .key_heads = KeyHeads::all},
    {.name = "Starcoder2ForCausalLM",
     .body = Body::starcoder2,
     .qkv = Bias::as_mlp,
     .o_proj = Bias::as_mlp,
     .mlp = Bias::any,
     .has_window = true},
    {.name = "GPTNeoXForCausalLM",
     .body = Body::starcoder2,
     .qkv = Bias::as_o_proj,
     .o_proj = Bias::any,
     .mlp = Bias::always,
     .has_head_dim = false,
     .key_heads = KeyHeads::all},
    {.name = "SeedOssForCausalLM", .qkv = Bias::any, .o_proj = Bias::any, .mlp = Bias::any},
    {.name = "GPTBigCodeForCausalLM",
     .body = Body::gpt2,
     .qkv = Bias::always,
     .o_proj = Bias::always,
     .mlp = Bias::always,
     .has_head_dim = false,
     .key_heads = KeyHeads::one_or_all},
    {.name = "OrionForCausalLM", .body = Body::orion, .has_head_dim = false},
};

// "key = value" of each key whose value another one would have to be.
using Differences = std::vector<std::string>;

void require(bool same, Differences& found, std::string assignment) {
  if (!same) found.push_back(std::move(assignment));
}

void compare_bias(const char* key, bool has, Bias rule, const ModelConfig& m, Differences& found) {
  const bool needed = rule == Bias::always || (rule == Bias::any && has) ||
                      (rule == Bias::as_o_proj && m.o_proj_bias) || (rule == Bias::as_mlp && m.mlp_bias);
  require(has == needed, found, fmt::format("{} = .{}.", key, needed));
}

void compare_heads(const Architecture& a, const ModelConfig& m, Differences& found) {
  const std::int64_t heads = m.num_attention_heads;
  const bool is_one = m.num_key_value_heads == 1 && a.key_heads == KeyHeads::one_or_all;
  require(a.key_heads == KeyHeads::any || is_one || m.num_key_value_heads == heads, found,
          fmt::format("num_key_value_heads = {}", heads));
  if (a.has_head_dim) return;
  const std::int64_t head_dim = (m.hidden_size + heads - 1) / heads;
  require(m.hidden_size == heads * head_dim, found, fmt::format("hidden_size = {}", heads * head_dim));
  require(m.head_dim == head_dim, found, fmt::format("head_dim = {}", head_dim));
}

void compare_experts(const Architecture& a, const ModelConfig& m, Differences& found) {
  const deck::MoeConfig& moe = m.moe;
  if (a.experts == Experts::none) return;
  const bool is_shared = moe.shared_expert_intermediate_size > 0;
  if (a.experts == Experts::shared) {
    require(is_shared, found, "shared_expert_intermediate_size more than 0");
  } else {
    require(!is_shared, found, "shared_expert_intermediate_size = 0");
  }
  if (a.experts != Experts::of_mlp_size) return;
  require(moe.moe_intermediate_size == m.intermediate_size, found,
          fmt::format("moe_intermediate_size = {}", m.intermediate_size));
  require(moe.norm_topk_prob, found, "norm_topk_prob = .true.");
}

Differences differences(const Architecture& a, const ModelConfig& m) {
  Differences found;
  require(a.has_layer_norm() == (m.normalization == deck::Normalization::layer_norm), found,
          a.has_layer_norm() ? "normalization = 'layer_norm'" : "normalization = 'rms_norm'");
  require(
      a.has_learned_positions() == m.has_learned_positions(), found,
      a.has_learned_positions() ? "position_embedding_type = 'learned_absolute'" : "position_embedding_type = 'rope'");
  require(a.is_gated() == m.is_gated(), found, a.is_gated() ? "hidden_act = 'silu'" : "hidden_act = 'gelu_new'");
  compare_bias("qkv_bias", m.qkv_bias, a.qkv, m, found);
  compare_bias("o_proj_bias", m.o_proj_bias, a.o_proj, m, found);
  compare_bias("mlp_bias", m.mlp_bias, a.mlp, m, found);
  require(a.qk_norm == m.qk_norm, found, fmt::format("qk_norm = .{}.", a.qk_norm));
  require(a.has_window || m.sliding_window == 0, found, "sliding_window = 0");
  compare_heads(a, m, found);
  compare_experts(a, m, found);
  return found;
}

}  // namespace

std::string unexported_text(const ModelConfig& model) {
  std::size_t least = SIZE_MAX;
  std::string nearest;
  for (const Architecture& a : architectures) {
    if ((a.experts == Experts::none) != (model.moe.num_experts == 0)) continue;
    const Differences found = differences(a, model);
    if (found.empty()) return "";
    if (found.size() > least) continue;
    if (found.size() < least) nearest.clear();
    least = found.size();
    nearest += fmt::format("{}{} with {}", nearest.empty() ? "" : "; ", a.name, fmt::join(found, ", "));
  }
  return "no Hugging Face architecture has these keys of &model and &moe in this combination, so nanotron-convert will "
         "not export the model; nearest: " +
         nearest;
}

}  // namespace nanotron::model
