// The experts of the layers, and what they share.

#include <algorithm>
#include <cmath>
#include <utility>

#include "feed_forward_parts.hpp"
#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/nn/moe/moe.hpp"
#include "nanotron/nn/moe/receive_buffer.hpp"
#include "sum_orders.hpp"

namespace nanotron::model {
namespace {

kernels::Routing routing_of(const deck::MoeConfig& moe) {
  return {.experts = moe.num_experts,
          .top_k = moe.num_experts_per_tok,
          .weights = moe.norm_topk_prob ? kernels::TopKWeights::renormalised : kernels::TopKWeights::scores,
          .score = moe.router_score,
          .groups = moe.n_group,
          .groups_per_token = moe.topk_group,
          .factor = moe.routed_scaling_factor};
}

// reproducible = 'layout': the order of sums does not depend on the grid.
bool keeps_order(const TransformerSetup& setup) { return setup.tensor_shards > 0; }

// Factor of each layer's balance loss: coef, or Hugging Face's coef x top_k / L (top_k times the mean over the L layers
// with experts).
double balance_factor(const deck::ModelConfig& model) {
  const deck::MoeConfig& moe = model.moe;
  if (moe.router_aux_loss_scale == deck::AuxLossScale::per_layer) return moe.router_aux_loss_coef;
  return moe.router_aux_loss_coef *
         (static_cast<double>(moe.num_experts_per_tok) / static_cast<double>(deck::routed_layer_count(model)));
}

// Scales of the gradients of the router's losses, which are means over the T tokens of the global batch:
//   balance = factor x sum over sequences of S tokens of (S / T) E sum_e f_e P_e f_e = n_e / (top_k S), P_e = sum_t
//   p_te / S d balance / d p_te = factor E n_e / (top_k S T)
// Zero except on rank 0 of the tensor-parallel group, whose partial gradients are all-reduced; with 'layout' every rank
// has the whole gradient.
kernels::RouterScales scales_of(const TransformerSetup& setup) {
  const deck::MoeConfig& moe = setup.model.moe;
  if (setup.tp->rank() != 0 && !keeps_order(setup)) return {};
  return {.balance = balance_factor(setup.model) * static_cast<double>(moe.num_experts),
          .zeta = moe.router_z_loss_coef};
}

// The group whose ranks send a slice each of the tokens that all have.
comm::Group& slices_of(const TransformerSetup& setup) { return setup.ep_spans_tp ? *setup.tp : comm::alone(); }

// Max number of sets of ranks with the same sequences that have members among ep neighbouring expert ranks.
index_t sequence_groups(const TransformerSetup& setup) {
  const index_t ep = setup.ep->size(), same = setup.cp->size() * slices_of(setup).size(), all = (ep + same - 1) / same;
  return ep % same == 0 || same % ep == 0 ? all : all + 1;
}

// Neighbouring ranks of an expert-parallel group first have slices of the same tokens, then share a sequence.
nn::ExpertCuts cuts_of(const TransformerSetup& setup, const SumOrder& tokens) {
  if (!keeps_order(setup)) return {};
  const int slices = slices_of(setup).size(), parts = setup.ep->size() / slices,
            ranks = std::min(setup.cp->size(), parts);
  return {.shards_on_rank = tokens.shards_on_rank, .ranks = ranks, .slices = slices, .sequences = parts / ranks};
}

nn::SumsOf expert_sums_of(const TransformerSetup& setup) {
  if (!keeps_order(setup)) return nn::SumsOf::tokens;
  return setup.ep_spans_tp ? nn::SumsOf::slices : nn::SumsOf::rows;
}

// Max tokens that a rank sends.
index_t longest_slice(const TransformerSetup& setup) {
  return shard_range(setup.sequences * setup.context().layout.longest_shard(), slices_of(setup).size(), 0).size();
}

// Max rows that the experts here receive: min(top_k, experts here) for each token of the expert-parallel group, or less
// where capacity_factor, receive_factor or receive_quantile limits them. sent: max rows that this rank sends.
index_t max_rows(const TransformerSetup& setup, const kernels::Routing& routing, index_t sent) {
  if (setup.ep->size() == 1) return sent;
  const nn::ContextShard context = setup.context();
  const index_t longest = context.layout.longest_shard(), here = routing.experts / setup.ep->size();
  const index_t slice = longest_slice(setup);
  index_t rows = setup.ep->size() * slice * std::min(routing.top_k, here);
  const deck::MoeConfig& moe = setup.model.moe;
  if (moe.capacity_factor > 0.0) {
    const index_t capacity = kernels::expert_capacity(moe.capacity_factor, routing, setup.length);
    rows = std::min(rows, here * setup.ep->size() * std::min(setup.sequences * std::min(capacity, longest), slice));
    rows = std::min(rows, here * sequence_groups(setup) * setup.sequences * capacity);
  }
  const index_t even = slice * routing.top_k;
  if (const double factor = nn::receive_buffer_factor(moe, even, setup.ep->size()); factor > 0.0) {
    const double allowed = std::ceil(factor * static_cast<double>(even));
    rows = static_cast<index_t>(std::min(static_cast<double>(rows), allowed));
  }
  return rows;
}

// The order of a sum over widths of experts, which whole experts have on one rank.
SumOrder order_of_widths(const TransformerSetup& setup, std::initializer_list<SumOrder::Block> widths) {
  if (!setup.ep_spans_tp) return detail::over_tensor_shards(setup, widths);
  return {widths, std::max(setup.tensor_shards, 1), 1, 0};
}
SumOrder::Block width_of(const TransformerSetup& setup) { return {setup.model.moe.moe_intermediate_size, 1}; }

// The orders of sums inside of the experts, and beside them.
nn::MoeOrders orders_in_experts(const TransformerSetup& setup) {
  const detail::SumOrders orders = detail::orders_of(setup);
  return {.width = order_of_widths(setup, {width_of(setup)}),
          .shared_width = orders.shared.down.in,
          .tokens = orders.sequence};
}

template <class T>
nn::MoeParts<T> parts_of(const TransformerSetup& setup, const ParameterTable& table, index_t tokens, Device& device,
                         Arena& arena) {
  nn::MoeParts<T> parts;
  const deck::MoeConfig& moe = setup.model.moe;
  parts.routing = routing_of(moe);
  parts.scales = scales_of(setup);
  parts.orders = orders_in_experts(setup);
  parts.ep_size = setup.ep->size();
  parts.cp = setup.cp;
  parts.slices = &slices_of(setup);
  const index_t sent = shard_range(tokens, parts.slices->size(), parts.slices->rank()).size() * moe.num_experts_per_tok;
  parts.sizes = nn::MoeSizes{.tokens = tokens,
                             .sequences = setup.sequences,
                             .hidden = setup.model.hidden_size,
                             .experts = moe.num_experts,
                             .columns = deck::feed_forward_sizes(setup.model).routed_outputs,
                             .top_k = moe.num_experts_per_tok,
                             .width = table.expert_width.size(),
                             .shared_width = table.shared_width.size(),
                             .rows = max_rows(setup, parts.routing, sent),
                             .sent = sent,
                             .is_sigmoid = moe.router_score == deck::RouterScore::sigmoid,
                             .bias_segments = moe.router_bias ? parts.orders.tokens.shards_on_rank : 0,
                             .gemms = setup.expert_gemms,
                             .cuts = cuts_of(setup, parts.orders.tokens),
                             .recompute_dispatch = setup.recompute_dispatch};
  if (moe.router_bias)
    parts.sizes.bias_workspace =
        kernels::bias_workspace_size(arena.processor(), tokens, moe.num_experts, parts.sizes.bias_segments);
  if (setup.model.mlp_bias)
    parts.sizes.bias_workspace =
        std::max(parts.sizes.bias_workspace, nn::ExpertBiases<T>::workspace_size(arena.processor(), parts.sizes));
  if (parts.sizes.cuts.sequences > 1 && table.sections.back().units.size() > 0) {
    parts.gradient_stride = table.unit(table.sections.back().first_layer_unit).range.size();
  }
  nn::ExchangeSize exchange{.assignments = parts.sizes.sent,
                            .rows = parts.sizes.rows,
                            .tokens = longest_slice(setup),
                            .hidden = parts.sizes.hidden,
                            .experts = parts.sizes.experts,
                            .cuts = parts.sizes.cuts,
                            .gemms = parts.sizes.gemms,
                            .row_type = setup.expert_rows,
                            .routing = parts.routing,
                            .received = setup.received_rows};
  const bool is_expected = moe.receive_factor > 0.0 || moe.receive_quantile > 0.0;
  exchange.by_node = parts.sizes.by_node =
      nn::node_row_sizes(exchange, parts.sizes.assignments(), setup.ep_nodes, is_expected);
  for (index_t turn = 0; turn < setup.in_turns; ++turn)
    parts.exchanges.push_back(nn::make_expert_exchange<T>(exchange, *setup.ep, setup.ep_nodes, arena));
  parts.capacity = nn::make_expert_capacity(moe.capacity_factor, parts.routing, setup.context(), setup.sequences,
                                            *setup.cp, device, arena);
  parts.sums = nn::make_expert_sums<T>(expert_sums_of(setup), *setup.tp);
  return parts;
}

// Layers share what they do not take themselves: take(a copy of what `shared` is so far).
template <class Memory, class Take>
void own(std::shared_ptr<const Memory>& shared, const Take& take) {
  const auto mine = shared ? std::make_shared<Memory>(*shared) : std::make_shared<Memory>();
  take(*mine);
  shared = mine;
}

template <class T>
std::vector<Matrix<master_t<T>>> gradients_of(const std::vector<nn::LinearWeights<T>>& weights) {
  std::vector<Matrix<master_t<T>>> gradients;
  for (const nn::LinearWeights<T>& w : weights) gradients.push_back(w.gradient);
  return gradients;
}

template <class T>
class Experts final : public FeedForwardParts<T> {
 public:
  Experts(const TransformerSetup& setup, const ParameterTable& table, index_t tokens, Device& device, Arena& arena)
      : FeedForwardParts<T>({}),
        parts_(parts_of<T>(setup, table, tokens, device, arena)),
        shared_(detail::orders_of(setup).shared),
        adds_down_bias_(setup.ep_spans_tp || keeps_order(setup) || setup.tp->rank() == 0),
        bias_stride_(table.sections.back().params_1d.size()),
        bytes_of_codes_(expert_code_bytes(setup, parts_.sizes, arena.processor())),
        rows_of_codes_(arena.take<std::byte>(MemoryKind::workspace, bytes_of_codes_.rows)),
        gate_up_{.out = order_of_widths(setup, {width_of(setup), width_of(setup)})},
        down_{.in = parts_.orders.width} {}

  void take_hidden(Arena&, MemoryKind, nn::FeedForwardActivations<T>&) const override {}
  void take_selective(Arena& arena, MemoryKind kind, nn::FeedForwardActivations<T>& act) const override {
    own(act.routed, [&](auto& mine) { nn::take_selective(arena, kind, parts_.sizes, mine); });
  }
  void take_full(Arena& arena, MemoryKind kind, nn::FeedForwardActivations<T>& act) const override {
    own(act.routed, [&](auto& mine) { nn::take_full(arena, kind, parts_.sizes, parts_.ep_size, mine); });
  }
  void take_doutput(Arena& arena, MemoryKind kind, nn::FeedForwardActivations<T>& act) const override {
    own(act.routed, [&](auto& mine) { nn::take_doutput(arena, kind, parts_.sizes, mine); });
  }
  void take_forward(Arena& arena, nn::FeedForwardWorkspace<T>& work) const override {
    own(work.routed, [&](auto& mine) { nn::take_forward(arena, parts_.sizes, mine); });
  }
  void take_backward(Arena& arena, nn::FeedForwardWorkspace<T>& work) const override {
    own(work.routed, [&](auto& mine) { nn::take_backward(arena, parts_.sizes, mine); });
  }

  void take_turn(Arena& arena, index_t turn, nn::FeedForwardWorkspace<T>& work) const override {
    own(work.routed, [&](auto& mine) { nn::take_turn(arena, parts_.sizes, turn, mine); });
  }

  std::vector<LinearSizes> linears() const override {
    const nn::MoeSizes& s = parts_.sizes;
    const index_t rows = s.gemms == deck::ExpertGemms::library ? s.rows : 0;
    return {{s.tokens, s.columns, s.hidden},
            {rows, 2 * s.width, s.hidden},
            {rows, s.hidden, s.width},
            {s.tokens, 2 * s.shared_width, s.hidden},
            {s.tokens, s.hidden, s.shared_width}};
  }
  std::size_t gemm_workspace_bytes() const override { return bytes_of_codes_.gemm; }
  index_t sums() const override { return 2 * parts_.sizes.experts + 2; }  // kernels::add_router_sums

  std::unique_ptr<const nn::FeedForward<T>> make(const FeedForwardSource<T>& source) const override;

 private:
  nn::MoeParts<T> parts_;
  FeedForwardOrders shared_;
  bool adds_down_bias_;  // on one rank, before the partial sums are reduced; or on all, behind the sums of rows
  index_t bias_stride_;  // as MoeParts::gradient_stride
  nn::ExpertCodeBytes bytes_of_codes_;
  Vector<std::byte> rows_of_codes_;
  nn::LinearOrders gate_up_, down_;
};

template <class T>
std::unique_ptr<const nn::FeedForward<T>> Experts<T>::make(const FeedForwardSource<T>& source) const {
  using M = master_t<T>;
  const std::string mlp = "model/layers/mlp/";
  const ParameterTable& table = source.table;
  const auto weights = [&](const nn::ParameterSpec& first, index_t rows) {
    return detail::linear_weights(table, source.buffers, first, source.layer, rows);
  };
  std::vector<nn::LinearWeights<T>> gate_up, down;  // of the experts here
  std::vector<nn::ExpertBias<T>> biases;
  for (index_t e = table.experts.begin; e < table.experts.end; ++e) {
    const MlpSpecs specs = table.expert(e);
    gate_up.push_back(weights(specs.first, specs.first_rows));
    down.push_back(weights(specs.down, specs.down.local_rows()));
    if (nn::LinearWeights<T>& first = gate_up.back(), &second = down.back(); first.bias.extent(0) > 0) {
      biases.push_back({std::exchange(first.bias, {}), std::exchange(second.bias, {}),
                        std::exchange(first.bias_gradient, {}), std::exchange(second.bias_gradient, {})});
    }
  }
  const auto experts = [&](const std::vector<nn::LinearWeights<T>>& w, const nn::LinearOrders& order,
                           const std::shared_ptr<const nn::ExpertCodes<T>>& codes) {
    if (codes) return codes->linear(parts_.sizes.gemms, gradients_of(w), rows_of_codes_);
    return nn::make_expert_linear<T>(parts_.sizes.gemms, w,
                                     {order, parts_.sizes.cuts.sequences, parts_.gradient_stride});
  };
  nn::MoeWeights<T> all{.router = weights(table[mlp + "gate/weight"], parts_.sizes.columns),
                        .gate_up = experts(gate_up, gate_up_, source.gemms.expert_gate_up),
                        .down = experts(down, down_, source.gemms.expert_down),
                        .biases = {std::move(biases), adds_down_bias_, parts_.sizes.cuts.sequences, bias_stride_},
                        .shared = {},
                        .act = nn::make_activation(source.activation)};
  if (all.router.bias.extent(0) > 0) {
    all.router.bias = Vector<const M>(all.router.bias.data(), parts_.sizes.experts);
    all.router.bias_gradient = Vector<M>(all.router.bias_gradient.data(), parts_.sizes.experts);
  }
  if (const std::string bias = mlp + "gate/e_score_correction_bias"; table.contains(bias))
    all.choice_bias = source.buffers.vector(table[bias], source.layer, parts_.sizes.experts);
  for (const std::string shared : {"shared_expert/", "shared_experts/"}) {
    if (!table.contains(mlp + shared + "gate_proj/weight")) continue;
    all.shared = detail::mlp_linears(source, shared_, table.mlp(mlp + shared), LayerGemms<T>{});
  }
  return std::make_unique<nn::Moe<T>>(std::move(all), parts_, source.sums);
}

}  // namespace

template <class T>
std::shared_ptr<const FeedForwardParts<T>> make_routed_parts(const TransformerSetup& setup, const ParameterTable& table,
                                                             index_t tokens, Device& device, Arena& arena) {
  return std::make_shared<Experts<T>>(setup, table, tokens, device, arena);
}

#define NANOTRON_INSTANTIATE(T)                                             \
  template std::shared_ptr<const FeedForwardParts<T>> make_routed_parts<T>( \
      const TransformerSetup&, const ParameterTable&, index_t, Device&, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model
