// The keys of &moe.
#include "nanotron/deck/keys/moe.hpp"

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/deck/layer_set.hpp"
#include "rows.hpp"

#define GROUP_NAME "moe"
#define GROUP(c) (c).model.moe

namespace nanotron::deck {

// clang-format off
std::vector<Parameter> moe_rows() {
  return {
    KEY(num_experts).at_least(0).at_most(1e5).of_all().omitted().nonzero().says(
        "Number of experts per layer (mixture of experts); 0: a dense feed-forward network."),
    KEY(num_experts_per_tok).at_least(1).at_most(64).says(
        "Experts per token (top-k): those with the largest router probability; ties go to the lower index."),
    KEY(expert_layers).omitted().says(
        "Layers with experts; the others have a dense network of intermediate_size: 'all'; a pattern such as '1:1', of "
        "each 2 layers the first; layers such as '1-5 8'; or all but some, such as '!0-2' (DeepSeek-V3)."),
    KEY(moe_intermediate_size).at_least(0).at_most(1e8).nonzero().says(
        "Width of an expert; 0: intermediate_size (Mixtral)."),
    KEY(shared_expert_intermediate_size).at_least(0).at_most(1e8).says(
        "Width of the shared expert, which processes all tokens, with a sigmoid gate on its output (Qwen2-MoE); 0: "
        "none."),
    KEY(n_shared_experts).at_least(0).at_most(1e5).omitted().says(
        "Shared experts without a gate, which process all tokens (DeepSeek-V3): one network of n_shared_experts * "
        "moe_intermediate_size; 0: none."),
    ENUM(router_score,
        {"softmax", RouterScore::softmax}, {"sigmoid", RouterScore::sigmoid}).omitted().says(
        "Scores of the experts from the router's logits. 'sigmoid': each by itself, and a token's experts are those "
        "with the largest score plus e_score_correction_bias (DeepSeek-V3)."),
    KEY(router_bias).omitted().says(
        "Whether the router's linear layer has a bias (GPT-OSS), which is learnt by gradient."),
    KEY(router_bias_update_rate).at_least(0).may_change().says(
        "Load balancing without a loss (DeepSeek-V3): each update adds this to the e_score_correction_bias of experts "
        "with less than the mean load and subtracts it from that of those with more. The bias takes part in the choice "
        "of experts only. 0: it is constant; with 'softmax' there is none."),
    KEY(n_group).at_least(1).at_most(64).omitted().says(
        "Groups of consecutive experts (DeepSeek); a divisor of num_experts."),
    KEY(topk_group).at_least(1).at_most(64).omitted().says(
        "Groups among which a token chooses its experts: those with the largest sum of their two best scores (with "
        "'softmax': with the best score)."),
    KEY(routed_scaling_factor).above(0).omitted().says(
        "Factor on the weights of a token's experts, after norm_topk_prob (DeepSeek)."),
    KEY(norm_topk_prob).says("Whether the scores of a token's experts are divided by their sum (Mixtral: yes)."),
    KEY(router_aux_loss_coef).at_least(0).may_change().says(
        "Coefficient of the load-balancing loss, which is computed per sequence; see router_aux_loss_scale for what it "
        "multiplies."),
    ENUM(router_aux_loss_scale,
        {"per_layer", AuxLossScale::per_layer}, {"hugging_face", AuxLossScale::hugging_face}).may_change().says(
        "What router_aux_loss_coef multiplies: the loss of each layer, which is 1 for an even load (as Megatron's "
        "moe_aux_loss_coeff); or num_experts_per_tok times the mean over the layers (as the value of config.json in "
        "transformers)."),
    KEY(router_z_loss_coef).at_least(0).may_change().says(
        "Coefficient of the router's z-loss, summed over the layers."),
    KEY(capacity_factor).at_least(0).may_change().says(
        "Capacity of an expert per sequence: capacity_factor * num_experts_per_tok * sequence_length / num_experts "
        "tokens, rounded up. Later tokens are dropped. 0: no limit (dropless)."),
    KEY(receive_factor).at_least(0).may_change().says(
        "Size of the buffer for the tokens that a rank's experts receive, and with ep_messages = 'by_node' of that for "
        "those that it forwards, relative to an even load; the run ends if more arrive. 0: buffers for the worst "
        "case."),
    KEY(receive_quantile).at_least(0).below(1).may_change().omitted().says(
        "Instead of receive_factor: the buffer holds this quantile of the rows of one dispatch, if routers are "
        "balanced (doc/parallelism_formulas.md). A step has thousands of dispatches: 0.999999999999, for example. "
        "--plan prints the factor, and the share of steps that exceed it. The run ends if more arrive. 0: not used."),
  };
}
// clang-format on

FeedForwardSizes feed_forward_sizes(const ModelConfig& model, const LayerKind& kind) {
  if (kind.is_routed) return feed_forward_sizes(model);
  return {.width = {model.intermediate_size, "model.intermediate_size"}};
}

std::string routed_layers(const ModelConfig& model) {
  return model.moe.num_experts == 0 ? "none" : model.moe.expert_layers;
}

ModelConfig with_routed_layers(ModelConfig model, const std::string& layers) {
  if (model.moe.num_experts > 0) model.moe.expert_layers = layers;
  return model;
}

std::int64_t routed_layer_count(const ModelConfig& model) {
  const LayerSet routed(routed_layers(model));
  const std::int64_t appended = routed.contains(model.num_hidden_layers - 1) ? appended_layers(model) : 0;
  return routed.count(model.num_hidden_layers) + appended;
}

void check_routed_layers(const Config& c, Findings& f) {
  const std::string key = "moe.expert_layers", layers = c.model.moe.expert_layers;
  if (c.model.moe.num_experts == 0 || !f.is_valid({key, "moe.num_experts", "model.num_hidden_layers"})) return;
  check_layer_set(key, layers, c, f);
  if (f.is_valid({key}) && routed_layer_count(c.model) == 0) {
    f.error({key, "moe.num_experts"}, "no layer has experts: expert_layers = " + quoted(layers),
            "a set with a layer, for example 'all' or '!0'", "or num_experts = 0");
  }
}

void refuse_two_networks(const Config& c, Findings& f, const std::string& key, const std::string& what,
                         const std::string& expected) {
  const std::int64_t routed = routed_layer_count(c.model);
  if (routed == 0 || routed == stored_layers(c.model) || !f.is_valid({key, "moe.expert_layers"})) return;
  f.error({key, "moe.expert_layers"},
          what + " needs experts in all layers or in none: expert_layers = " + quoted(c.model.moe.expert_layers),
          expected, "or expert_layers = 'all'");
}

FeedForwardSizes feed_forward_sizes(const ModelConfig& model) {
  const MoeConfig& moe = model.moe;
  const FeedForwardSizes::Width dense{model.intermediate_size, "model.intermediate_size"};
  if (moe.num_experts == 0) return {.width = dense};
  const FeedForwardSizes::Width each =
      moe.moe_intermediate_size == 0 ? dense
                                     : FeedForwardSizes::Width{moe.moe_intermediate_size, "moe.moe_intermediate_size"};
  const std::int64_t gated = moe.shared_expert_intermediate_size;
  FeedForwardSizes::Width shared{moe.n_shared_experts * each.size, "moe.n_shared_experts"};
  if (gated > 0) shared = {gated, "moe.shared_expert_intermediate_size"};
  return {.networks = moe.num_experts,
          .networks_per_token = moe.num_experts_per_tok,
          .width = each,
          .shared_width = shared,
          .routed_outputs = moe.num_experts + (gated > 0 ? 1 : 0)};
}

bool drops_tokens(const ModelConfig& model) { return model.moe.capacity_factor > 0.0; }

ModelConfig dropless(ModelConfig model) {
  model.moe.capacity_factor = 0.0;
  return model;
}

ModelConfig with_largest_buffers(ModelConfig model) {
  model.moe.receive_factor = model.moe.receive_quantile = 0.0;
  return model;
}

}  // namespace nanotron::deck

#undef GROUP_NAME
#undef GROUP
