#include "nanotron/model/architectures.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <sstream>
#include <vector>

#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/layer_set.hpp"
#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::model {
namespace {

using deck::ModelConfig;

enum class KeyHeads { any, all, one_or_all };  // of the attention heads

// A row per architecture that nanotron-convert writes: WRITTEN in tools/nanotron_tools/hf_config.py, whose
// `differences` has the same rules. What its config.json says of the keys of &model and &moe:
//
//   key=*        any value
//   key=a|b      one of these; the first is needed where the model has another
//   key=@other   the value of another key
//   key=name     what the function of this name computes
//
// A key without a rule has its default, except for those of every_architecture.
struct Architecture {
  const char* name;
  std::string rules;
  bool is_moe = false;
  bool has_head_dim = true;  // else it is hidden_size / num_attention_heads
  KeyHeads key_heads = KeyHeads::any;
  std::string always_there = "";  // integers that are not 0
};

const std::string every_architecture =
    "hidden_size=* num_hidden_layers=* num_attention_heads=* num_key_value_heads=* head_dim=* intermediate_size=* "
    "vocab_size=* rms_norm_eps=* layer_norm_epsilon=* tie_word_embeddings=* max_position_embeddings=* rope_theta=* "
    "rope_type=* rope_factor=* original_max_position_embeddings=* rope_low_freq_factor=* rope_high_freq_factor=* "
    "rope_beta_fast=* rope_beta_slow=* rope_attention_factor=* rope_truncate=* rope_short_factor=* "
    "rope_long_factor=* num_experts=* num_experts_per_tok=* "
    "moe_intermediate_size=* ";
const std::string biases_of_llama = "qkv_bias=@o_proj_bias o_proj_bias=* ";
const std::string all_biases = "qkv_bias=.true. o_proj_bias=.true. mlp_bias=.true. ";
const std::string layer_norm = "normalization='layer_norm' ", gelu = "hidden_act='gelu_new'|'gelu' ";
const std::string gelu_gate = "hidden_act='geglu_tanh'|'geglu' ", windows = "sliding_window=* window_layers=* ";
const std::string all_qk_norm = "qk_norm=.true. qk_norm_over='projection' ";
const std::string of_gemma =
    "norm_weight='one_plus' norm_placement='sandwich' attention_multiplier=* "
    "attn_logit_softcapping=* final_logit_softcapping=* embedding_multiplier=root_of_width ";
const std::string of_gpt2 = layer_norm + gelu + all_biases + "position_embedding_type='learned_absolute' ";

std::vector<Architecture> dense_architectures() {
  return {
      {.name = "LlamaForCausalLM", .rules = biases_of_llama + "mlp_bias=*"},
      {.name = "MistralForCausalLM", .rules = "sliding_window=*"},
      {.name = "Qwen2ForCausalLM", .rules = "qkv_bias=.true."},
      {.name = "Qwen3ForCausalLM", .rules = biases_of_llama + "qk_norm=.true."},
      {.name = "GPT2LMHeadModel", .rules = of_gpt2, .has_head_dim = false, .key_heads = KeyHeads::all},
      {.name = "Starcoder2ForCausalLM",
       .rules = layer_norm + gelu + "qkv_bias=@mlp_bias o_proj_bias=@mlp_bias mlp_bias=* sliding_window=*"},
      {.name = "GPTNeoXForCausalLM",
       .rules = layer_norm + gelu + biases_of_llama +
                "mlp_bias=.true. partial_rotary_factor=* parallel_residual='two_norms'|'none'",
       .has_head_dim = false,
       .key_heads = KeyHeads::all},
      {.name = "SeedOssForCausalLM", .rules = "qkv_bias=* o_proj_bias=* mlp_bias=*"},
      {.name = "GPTBigCodeForCausalLM", .rules = of_gpt2, .has_head_dim = false, .key_heads = KeyHeads::one_or_all},
      {.name = "GraniteForCausalLM",
       .rules = biases_of_llama + "mlp_bias=* embedding_multiplier=* logits_scaling=* residual_multiplier=* "
                                  "attention_multiplier=*"},
      {.name = "ApertusForCausalLM", .rules = biases_of_llama + "qk_norm=.true. hidden_act='xielu'"},
      {.name = "SmolLM3ForCausalLM", .rules = biases_of_llama + "mlp_bias=* rope_layers=*"},
      {.name = "Olmo2ForCausalLM", .rules = biases_of_llama + all_qk_norm + "norm_placement='post'"},
      {.name = "Olmo3ForCausalLM",
       .rules = biases_of_llama + all_qk_norm + windows + "norm_placement='post' rope_local_theta=theta_where_scaled"},
      {.name = "Gemma2ForCausalLM", .rules = biases_of_llama + gelu_gate + windows + of_gemma},
      {.name = "Gemma3ForCausalLM",
       .rules = biases_of_llama + gelu_gate + windows + of_gemma + "qk_norm=.true. rope_local_theta=theta_of_gemma3"},
      {.name = "StableLmForCausalLM",
       .rules = layer_norm + "qkv_bias=* partial_rotary_factor=* parallel_residual='none'|'one_norm'",
       .has_head_dim = false},
      {.name = "Phi3ForCausalLM", .rules = "sliding_window=* partial_rotary_factor=* rope_type='default'|'longrope'"},
      {.name = "GlmForCausalLM", .rules = "qkv_bias=* rope_interleaved=.true. partial_rotary_factor=*"},
      {.name = "Glm4ForCausalLM",
       .rules = "qkv_bias=* rope_interleaved=.true. partial_rotary_factor=* norm_placement='sandwich'"},
      {.name = "OPTForCausalLM",
       .rules = layer_norm + "hidden_act='relu'|'gelu_new'|'gelu' qkv_bias=@mlp_bias o_proj_bias=@mlp_bias "
                             "mlp_bias=* position_embedding_type='learned_absolute' layer_norm_epsilon=1e-05",
       .has_head_dim = false,
       .key_heads = KeyHeads::all},
      {.name = "PhiForCausalLM",
       .rules = layer_norm + gelu + all_biases +
                "lm_head_bias=.true. parallel_residual='one_norm' "
                "partial_rotary_factor=* rope_type='default'",
       .has_head_dim = false},
  };
}

std::vector<Architecture> architectures_with_experts() {
  return {
      {.name = "MixtralForCausalLM", .rules = "moe_intermediate_size=@intermediate_size", .is_moe = true},
      {.name = "Qwen2MoeForCausalLM",
       .rules = "qkv_bias=* shared_expert_intermediate_size=* norm_topk_prob=*",
       .is_moe = true,
       .always_there = "shared_expert_intermediate_size"},
      {.name = "Qwen3MoeForCausalLM", .rules = biases_of_llama + "qk_norm=.true. norm_topk_prob=*", .is_moe = true},
      {.name = "OlmoeForCausalLM",
       .rules = biases_of_llama + all_qk_norm + "moe_intermediate_size=@intermediate_size norm_topk_prob=*",
       .is_moe = true,
       .has_head_dim = false},
      {.name = "GptOssForCausalLM",
       .rules = biases_of_llama + windows +
                "attention_sinks=.true. mlp_bias=.true. router_bias=.true. "
                "hidden_act='swiglu_clamped' moe_intermediate_size=@intermediate_size",
       .is_moe = true},
      {.name = "DeepseekV3ForCausalLM",
       .rules = "rms_norm_eps=1e-06 rope_type='default'|'yarn' rope_interleaved=* attention_multiplier=scale_of_yarn "
                "head_dim=compressed_width q_lora_rank=* kv_lora_rank=* qk_nope_head_dim=* qk_rope_head_dim=* "
                "v_head_dim=* router_score='sigmoid' norm_topk_prob=* n_group=* topk_group=* routed_scaling_factor=* "
                "n_shared_experts=* expert_layers=all_from_the_first",
       .is_moe = true,
       .key_heads = KeyHeads::all,
       .always_there = "n_shared_experts kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"},
  };
}

using Computed = std::function<deck::Scalar(const deck::Config&)>;

// Of a key of &model or &moe.
deck::Scalar value_of(const deck::Config& config, const std::string& key) {
  const auto found = std::ranges::find_if(deck::parameters(), [&](const deck::Parameter& p) {
    return p.name == key && (p.group == "model" || p.group == "moe");
  });
  return found->get(config);
}

double number(const deck::Config& config, const char* key) { return std::get<double>(value_of(config, key)); }

std::int64_t compressed_width(const deck::Config& c) {
  return std::get<std::int64_t>(value_of(c, "qk_nope_head_dim")) +
         std::get<std::int64_t>(value_of(c, "qk_rope_head_dim"));
}

// DeepSeek's config.json has the factor of YaRN's scores as mscale_all_dim, to nine places.
double scale_of_yarn(const deck::Config& c) {
  const ModelConfig& m = c.model;
  if (m.rope_type != deck::RopeType::yarn || m.attention_multiplier == 0.0 || m.rope_factor <= 1.0) return 0.0;
  const auto width = static_cast<double>(compressed_width(c));
  const double growth = 0.1 * logarithm(m.rope_factor);
  const double given = (std::sqrt(m.attention_multiplier * std::sqrt(width)) - 1.0) / growth;
  const double magnitude = std::round(given * 1e9) / 1e9 * growth + 1.0;
  return magnitude == 1.0 ? 0.0 : power(width, -0.5) * magnitude * magnitude;
}

// Dense layers come first.
std::string all_from_the_first(const ModelConfig& m) {
  const deck::LayerSet set(m.moe.expert_layers);
  const std::int64_t last = m.num_hidden_layers - 1;
  std::int64_t first = 0;
  while (first <= last && !set.contains(first)) ++first;
  bool is_it = true;
  for (std::int64_t layer = first; layer <= last; ++layer) is_it = is_it && set.contains(layer);
  if (is_it) return m.moe.expert_layers;
  return first == 0 ? "all" : fmt::format("!0{}", first == 1 ? "" : fmt::format("-{}", first - 1));
}

bool is_scaled(const deck::Config& config) { return config.model.rope_type != deck::RopeType::standard; }

const std::map<std::string, Computed> computed = {
    {"root_of_width", [](const deck::Config& c) { return std::sqrt(static_cast<double>(c.model.hidden_size)); }},
    {"compressed_width", [](const deck::Config& c) { return compressed_width(c); }},
    {"scale_of_yarn", [](const deck::Config& c) { return scale_of_yarn(c); }},
    {"all_from_the_first", [](const deck::Config& c) { return all_from_the_first(c.model); }},
    {"theta_where_scaled", [](const deck::Config& c) { return is_scaled(c) ? c.model.rope_theta : 0.0; }},
    {"theta_of_gemma3",
     [](const deck::Config& c) {
       const double theta = number(c, "rope_local_theta");
       if (theta == 0.0) return is_scaled(c) ? c.model.rope_theta : 0.0;
       return theta == c.model.rope_theta && !is_scaled(c) ? 0.0 : theta;
     }},
};

std::map<std::string, std::string> rules_of(const Architecture& a) {
  std::map<std::string, std::string> rules;
  std::istringstream words(every_architecture + a.rules);
  for (std::string word; words >> word;) {
    const std::size_t end = word.find('=');
    rules[word.substr(0, end)] = word.substr(end + 1);
  }
  return rules;
}

// "key = value" of each key whose value another one would have to be.
using Differences = std::vector<std::string>;

void require(bool same, Differences& found, const std::string& key, const std::string& needed) {
  if (!same) found.push_back(fmt::format("{} = {}", key, needed));
}

// Of values divided by '|': `value` if it is among them, else the first.
std::string nearest_of(const std::string& values, const std::string& value) {
  std::istringstream words(values);
  std::string first;
  for (std::string word; std::getline(words, word, '|');) {
    if (word == value) return value;
    if (first.empty()) first = word;
  }
  return first;
}

std::string needed_value(const std::string& rule, const std::string& value, const deck::Config& config) {
  if (rule[0] == '@') return deck::spelled(value_of(config, rule.substr(1)));
  const auto function = computed.find(rule);
  return function == computed.end() ? nearest_of(rule, value) : deck::spelled(function->second(config));
}

// Keys that mean nothing beside another choice of position embedding.
bool is_of_other_positions(const std::string& key, const std::map<std::string, std::string>& rules,
                           const ModelConfig& m) {
  const bool is_of_rope = key.starts_with("rope_") || key == "partial_rotary_factor";
  return is_of_rope && (rules.contains("position_embedding_type") || !m.has_rotary());
}

void compare_heads(const Architecture& a, const ModelConfig& m, Differences& found) {
  const std::int64_t heads = m.num_attention_heads;
  const bool is_one = m.num_key_value_heads == 1 && a.key_heads == KeyHeads::one_or_all;
  require(a.key_heads == KeyHeads::any || is_one || m.num_key_value_heads == heads, found, "num_key_value_heads",
          std::to_string(heads));
  if (a.has_head_dim) return;
  const std::int64_t head_dim = (m.hidden_size + heads - 1) / heads;
  require(m.hidden_size == heads * head_dim, found, "hidden_size", std::to_string(heads * head_dim));
  require(m.head_dim == head_dim, found, "head_dim", std::to_string(head_dim));
}

Differences differences(const Architecture& a, const deck::Config& config) {
  Differences found;
  const std::map<std::string, std::string> rules = rules_of(a);
  const deck::Config defaults;
  const auto spelled = [](const deck::Parameter& p, const deck::Config& c) { return deck::spelled(p.get(c)); };
  for (const deck::Parameter& p : deck::parameters()) {
    const bool is_of_model = p.group == "model" || (p.group == "moe" && a.is_moe);
    if (!is_of_model || p.part_of == deck::PartOf::no_model) continue;
    const auto rule = rules.find(p.name);
    const std::string values = rule == rules.end() ? spelled(p, defaults) : rule->second, value = spelled(p, config);
    if (values == "*" || is_of_other_positions(p.name, rules, config.model)) continue;
    if (p.name == "layer_norm_epsilon" && config.model.normalization != deck::Normalization::layer_norm) continue;
    require(value == needed_value(values, value, config), found, p.name, needed_value(values, value, config));
  }
  compare_heads(a, config.model, found);
  std::istringstream sizes(a.always_there);
  for (std::string key; sizes >> key;) {
    if (value_of(config, key) == deck::Scalar(std::int64_t{0})) found.push_back(key + " more than 0");
  }
  return found;
}

}  // namespace

std::string unexported_text(const ModelConfig& model) {
  static const std::vector<Architecture> dense = dense_architectures(), routed = architectures_with_experts();
  deck::Config config;
  config.model = model;
  std::size_t least = SIZE_MAX;
  std::string nearest;
  for (const Architecture& a : model.moe.num_experts > 0 ? routed : dense) {
    const Differences found = differences(a, config);
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
