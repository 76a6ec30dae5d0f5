#include "feed_forward_parts.hpp"

#include <algorithm>
#include <cmath>

#include "nanotron/nn/mlp/mlp.hpp"
#include "nanotron/nn/moe/moe.hpp"

namespace nanotron::model::detail {
namespace {

kernels::Routing routing_of(const deck::MoeConfig& moe) {
  return {.experts = moe.num_experts,
          .top_k = moe.num_experts_per_tok,
          .weights = moe.norm_topk_prob ? kernels::TopKWeights::renormalised : kernels::TopKWeights::softmax};
}

// reproducible = 'layout': the order of sums does not depend on the grid.
bool keeps_order(const TransformerSetup& setup) { return setup.tensor_shards > 0; }

// Factor of each layer's balance loss: coef, or Hugging Face's coef x top_k / L (top_k times the mean over layers).
double balance_factor(const deck::ModelConfig& model) {
  const deck::MoeConfig& moe = model.moe;
  if (moe.router_aux_loss_scale == deck::AuxLossScale::per_layer) return moe.router_aux_loss_coef;
  return moe.router_aux_loss_coef *
         (static_cast<double>(moe.num_experts_per_tok) / static_cast<double>(model.num_hidden_layers));
}

// Scales of the gradients of the router's losses, which are means over the T tokens of the global batch:
//   balance = factor x sum over sequences of S tokens of (S / T) E sum_e f_e P_e
//   f_e = n_e / (top_k S), P_e = sum_t p_te / S
//   d balance / d p_te = factor E n_e / (top_k S T)
// Zero except on rank 0 of the tensor-parallel group, whose partial gradients are all-reduced; with 'layout' every rank
// has the whole gradient.
kernels::RouterScales scales_of(const TransformerSetup& setup) {
  const deck::MoeConfig& moe = setup.model.moe;
  if (setup.tp->rank() != 0 && !keeps_order(setup)) return {};
  return {.balance = balance_factor(setup.model) * static_cast<double>(moe.num_experts),
          .zeta = moe.router_z_loss_coef};
}

// Max number of context-parallel groups that have members among ep neighbouring data-parallel ranks.
index_t sequence_groups(const TransformerSetup& setup) {
  const index_t ep = setup.ep->size(), cp = setup.cp->size(), whole = (ep + cp - 1) / cp;
  return ep % cp == 0 || cp % ep == 0 ? whole : whole + 1;
}

// Neighbouring ranks of the data-parallel group (dp x cp) first share a sequence: cp varies fastest.
nn::ExpertCuts cuts_of(const TransformerSetup& setup, const SumOrder& tokens) {
  if (!keeps_order(setup)) return {};
  const int ranks = std::min(setup.cp->size(), setup.ep->size());
  return {.held = tokens.shards_on_rank, .ranks = ranks, .sequences = setup.ep->size() / ranks};
}

// Max rows that the experts here receive: min(top_k, experts here) for each token of the expert-parallel group, or less
// where capacity_factor or receive_factor limits them.
index_t max_rows(const TransformerSetup& setup, const kernels::Routing& routing, index_t assignments) {
  if (setup.ep->size() == 1) return assignments;
  const nn::ContextShard context = setup.context();
  const index_t longest = context.layout.longest_shard(), here = routing.experts / setup.ep->size();
  index_t rows = setup.ep->size() * setup.sequences * longest * std::min(routing.top_k, here);
  const deck::MoeConfig& moe = setup.model.moe;
  if (moe.capacity_factor > 0.0) {
    const index_t capacity = kernels::expert_capacity(moe.capacity_factor, routing, setup.length);
    rows = std::min(rows, here * setup.ep->size() * setup.sequences * std::min(capacity, longest));
    rows = std::min(rows, here * sequence_groups(setup) * setup.sequences * capacity);
  }
  if (moe.receive_factor > 0.0) {
    const auto even = static_cast<double>(setup.sequences * longest * routing.top_k);
    const double allowed = std::ceil(moe.receive_factor * even);
    rows = static_cast<index_t>(std::min(static_cast<double>(rows), allowed));
  }
  return rows;
}

template <class T>
nn::MlpLinears<T> linears(const ParameterTable& table, const MlpSpecs& specs, const nn::ParameterBuffers<T>& buffers,
                          index_t layer, const nn::LinearOrders& of_gate_up, const nn::LinearOrders& of_down,
                          const LayerGemms<T>& gemms = {}) {
  return {
      nn::Linear<T>(linear_weights(table, buffers, specs.first, layer, specs.first_rows), of_gate_up, gemms.gate_up),
      nn::Linear<T>(linear_weights(table, buffers, specs.down, layer, specs.down.local_rows()), of_down, gemms.down)};
}

}  // namespace

index_t router_sums_of(const deck::MoeConfig& moe) { return moe.num_experts > 0 ? 2 * moe.num_experts + 2 : 0; }

template <class T>
std::unique_ptr<nn::MoeParts<T>> make_moe_parts(const TransformerSetup& setup, const ParameterTable& table,
                                                index_t tokens, const nn::MoeOrders& orders, Device& device,
                                                Arena& arena) {
  auto parts = std::make_unique<nn::MoeParts<T>>();
  const deck::MoeConfig& moe = setup.model.moe;
  if (moe.num_experts == 0) return parts;
  parts->routing = routing_of(moe);
  parts->scales = scales_of(setup);
  parts->orders = orders;
  parts->ep_size = setup.ep->size();
  parts->cp = setup.cp;
  parts->sizes = {.tokens = tokens,
                  .sequences = setup.sequences,
                  .hidden = setup.model.hidden_size,
                  .experts = moe.num_experts,
                  .columns = moe.num_experts + (moe.shared_expert_intermediate_size > 0 ? 1 : 0),
                  .top_k = moe.num_experts_per_tok,
                  .width = table.expert_width.size(),
                  .rows = max_rows(setup, parts->routing, tokens * moe.num_experts_per_tok),
                  .gemms = setup.expert_gemms,
                  .cuts = cuts_of(setup, orders.tokens)};
  if (parts->sizes.cuts.sequences > 1) {
    parts->gradient_stride = table.unit(table.sections.back().first_layer_unit).range.size();
  }
  parts->exchange = nn::make_expert_exchange<T>({.assignments = parts->sizes.assignments(),
                                                 .rows = parts->sizes.rows,
                                                 .hidden = parts->sizes.hidden,
                                                 .experts = parts->sizes.experts,
                                                 .cuts = parts->sizes.cuts,
                                                 .gemms = parts->sizes.gemms},
                                                *setup.ep, arena);
  parts->capacity = nn::make_expert_capacity(moe.capacity_factor, parts->routing, setup.context(), setup.sequences,
                                             *setup.cp, device, arena);
  parts->sums = nn::make_expert_sums<T>(keeps_order(setup) ? nn::SumsOf::rows : nn::SumsOf::tokens, *setup.tp);
  return parts;
}

template <class T>
std::unique_ptr<const nn::FeedForward<T>> make_feed_forward(const nn::Activation<T>& act, const ParameterTable& table,
                                                            const nn::ParameterBuffers<T>& buffers, index_t layer,
                                                            const FeedForwardOrders& orders, const LayerGemms<T>& gemms,
                                                            const nn::MoeParts<T>& parts, Vector<double> sums) {
  const std::string mlp = "model/layers/mlp/";
  if (table.experts.size() == 0) {
    const nn::MlpLinears<T> dense = linears(table, table.mlp(mlp), buffers, layer, orders.gate_up, orders.down, gemms);
    return std::make_unique<nn::Mlp<T>>(dense.gate_up, dense.down, act);
  }
  std::vector<nn::LinearWeights<T>> gate_up, down;  // of the experts here
  for (index_t e = table.experts.begin; e < table.experts.end; ++e) {
    const MlpSpecs specs = table.expert(e);
    gate_up.push_back(linear_weights(table, buffers, specs.first, layer, specs.first_rows));
    down.push_back(linear_weights(table, buffers, specs.down, layer, specs.down.local_rows()));
  }
  const auto experts = [&](const std::vector<nn::LinearWeights<T>>& w, const nn::LinearOrders& order) {
    return nn::make_expert_linear<T>(parts.sizes.gemms, w, {order, parts.sizes.cuts.sequences, parts.gradient_stride});
  };
  nn::MoeWeights<T> weights{
      .router = linear_weights(table, buffers, table[mlp + "gate/weight"], layer, parts.sizes.columns),
      .gate_up = experts(gate_up, orders.expert_gate_up),
      .down = experts(down, orders.expert_down),
      .shared = {}};
  if (table.contains(mlp + "shared_expert_gate/weight")) {
    weights.shared = linears(table, table.mlp(mlp + "shared_expert/"), buffers, layer, orders.gate_up, orders.down);
  }
  return std::make_unique<nn::Moe<T>>(std::move(weights), parts, sums);
}

#define NANOTRON_INSTANTIATE(T)                                                                                     \
  template std::unique_ptr<nn::MoeParts<T>> make_moe_parts(const TransformerSetup&, const ParameterTable&, index_t, \
                                                           const nn::MoeOrders&, Device&, Arena&);                  \
  template std::unique_ptr<const nn::FeedForward<T>> make_feed_forward(                                             \
      const nn::Activation<T>&, const ParameterTable&, const nn::ParameterBuffers<T>&, index_t,                     \
      const FeedForwardOrders&, const LayerGemms<T>&, const nn::MoeParts<T>&, Vector<double>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model::detail
