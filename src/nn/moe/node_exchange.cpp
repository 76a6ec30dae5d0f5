// Dispatch and combine in two steps, as DeepEP's kernels between nodes (DeepSeek-AI 2024, DeepSeek-V3, section 3.2.2)
// and the hybrid dispatcher of Megatron-LM do them. A token crosses once to each node with experts of its own, to the
// rank with the same place there, which forwards it to the ranks of these experts. Back, that rank adds the outputs of
// its node for a token, rounds the sum, and returns it: the order of the sum over a token's experts depends on the
// nodes. Rows reach the experts in the order of messages by rank, so that weight gradients have the same bits.
//
//   across     node rows between the ranks with the same place: token, k weights, k experts (kernels/moe/node_rows.hpp)
//   within     rows of one expert each, between the ranks of a node
//
// Messages across nodes are in flight beside other work, those within a node are not.

#include "nn/moe/node_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/moe/expert_rows.hpp"
#include "nanotron/kernels/moe/node_rows.hpp"
#include "nn/linear/rows.hpp"
#include "nn/moe/counted_messages.hpp"

namespace nanotron::nn {
namespace {

// The share of tokens with an expert among `here` of `all`, of which each token has `chosen` different ones.
double share_of_tokens(double here, double all, double chosen) {
  double none = 1.0;
  for (double i = 0.0; i < chosen; ++i) none *= std::max(0.0, all - here - i) / (all - i);
  return 1.0 - none;
}

// The same of a node, where all experts are equally likely. With groups of experts (DeepSeek's node-limited routing)
// all of them are first equally likely, then the experts of those chosen.
double share_of_node(const kernels::Routing& routing, index_t nodes) {
  const auto experts = static_cast<double>(routing.experts), k = static_cast<double>(routing.top_k);
  const auto n = static_cast<double>(nodes), groups = static_cast<double>(routing.groups);
  if (routing.groups_per_token >= routing.groups) return share_of_tokens(experts / n, experts, k);
  const auto open = static_cast<double>(routing.groups_per_token);
  const double group = experts / groups;
  if (n >= groups) return open / groups * share_of_tokens(experts / n, open * group, k);
  // Of the groups of a node, m are among those chosen (hypergeometric).
  const double here = groups / n;
  double share = 0.0;
  const auto binomial = [](double a, double b) {
    return std::exp(std::lgamma(a + 1.0) - std::lgamma(b + 1.0) - std::lgamma(a - b + 1.0));
  };
  for (double m = 1.0; m <= std::min(here, open); ++m) {
    if (open - m > groups - here) continue;
    const double chance = binomial(here, m) * binomial(groups - here, open - m) / binomial(groups, open);
    share += chance * share_of_tokens(m * group, open * group, k);
  }
  return share;
}

template <class T>
class NodeExchange final : public ExpertExchange<T> {
 public:
  using M = master_t<T>;
  NodeExchange(const ExchangeSize& size, const NodeGroups& groups, Arena& arena)
      : size_(size),
        across_(groups.across),
        within_(groups.within),
        k_(size.routing.top_k),
        nodes_(across_->size()),
        of_node_(size.experts / nodes_),
        here_(of_node_ / within_->size()),
        outer_({.sent = size.by_node.sent,
                .received = size.by_node.received,
                .hidden = size.hidden,
                .values = 2 * k_,
                .returned_values = k_,
                .row_type = size.row_type,
                .keeps_received = true},
               *across_, 2 * outer_counts() + 2 * size.experts, arena),
        inner_(
            {.sent = size.by_node.forwarded, .received = size.rows, .hidden = size.hidden, .row_type = size.row_type},
            *within_, arena),
        places_(arena.take<std::int64_t>(MemoryKind::workspace, size.rows)),
        node_of_(arena.take<std::int64_t>(MemoryKind::workspace, size.by_node.assignments)),
        experts_(arena.take<std::int64_t>(MemoryKind::workspace, size.by_node.received * k_)),
        weights_(arena.take<M>(MemoryKind::workspace, size.by_node.received * k_)),
        rows_of_(arena.take<std::int64_t>(MemoryKind::workspace, nodes_ + of_node_)),
        stretches_(arena.take<std::int64_t>(MemoryKind::workspace,
                                            std::max(kernels::stretches_of(size.by_node.assignments) * nodes_,
                                                     kernels::stretches_of(size.by_node.received * k_) * of_node_))),
        counts_(arena.take<std::int64_t>(MemoryKind::workspace, 2 * outer_counts() + 2 * size.experts)) {
    each_.reserve(static_cast<std::size_t>(std::max(nodes_, static_cast<index_t>(within_->size()))));
  }

  index_t rows() const override { return size_.rows; }
  bool is_local() const override { return false; }

  PassTraffic traffic() const override {
    const index_t node_rows = nodes_ * planned_node_rows(size_.assignments), rows = size_.assignments;
    const index_t value = static_cast<index_t>(sizeof(M)), number = static_cast<index_t>(sizeof(std::int64_t));
    const comm::StepTraffic returned = exchanged(node_rows * outer_.returned_bytes(), rows * inner_.returned_bytes());
    return {
        .forward = exchanged(node_rows * (outer_.sent_bytes() + 2 * k_ * value) + outer_counts() * number,
                             rows * (inner_.sent_bytes() + value) + size_.experts * number),
        .backward =
            exchanged(node_rows * (outer_.sent_bytes() + k_ * value), rows * (inner_.sent_bytes() + value)) + returned,
        .output = returned};
  }

  comm::StepTraffic dispatch_traffic() const override {
    return exchanged(nodes_ * planned_node_rows(size_.assignments) * outer_.sent_bytes(),
                     size_.assignments * inner_.sent_bytes());
  }

  void start_plan(Device& device, const TokenRoutes& routes, Vector<std::int64_t> counts, ExpertRows& plan) override {
    const NodeRows& node = *plan.nodes;
    const auto all = static_cast<index_t>(routes.rows.extent(0)), sent = static_cast<index_t>(routes.sources.extent(0));
    kernels::mark_nodes(device, k_, of_node_, routes.experts, routes.rows, first(node_of(all), all),
                        first(node.rows, all), node.sources);
    const Vector<std::int64_t> node_rows(rows_of_.data(), nodes_);
    kernels::assign_rows(device, node_of(all), first(node.rows, all), node.sources, node_rows, stretches(all, nodes_));
    kernels::join_node_counts(device, node_rows, counts, Matrix<std::int64_t>(at(0), nodes_, 1 + of_node_));
    exchange_counts(device, *across_, at(0), 1 + of_node_, at(outer_counts()));
    kernels::split_node_counts(device, Matrix<const std::int64_t>(at(outer_counts()), nodes_, 1 + of_node_),
                               Vector<std::int64_t>(at(forwarded()), size_.experts));
    exchange_counts(device, *within_, at(forwarded()), here_ * nodes_, at(arrived()));
    kernels::copy<std::int64_t>(device, Vector<const std::int64_t>(at(arrived()), size_.experts), received_of(plan));
    if (size_.gemms == deck::ExpertGemms::grouped) {
      kernels::expert_offsets(device, Matrix<const std::int64_t>(at(arrived()), within_->size(), here_ * nodes_),
                              nodes_, plan.offsets);
    }
    plan.sent_rows = std::min(sent / k_ * std::min(nodes_, k_), size_.by_node.sent);
    if (device.is_planning()) plan_counts(device, sent);
    if (outer_.start_counts(device, counts_)) read_counts(plan);
  }

  void finish_plan(Device&, ExpertRows& plan) override {
    if (!outer_.finish_counts()) return;
    read_counts(plan);
    outer_.start_waiting(outer_counts_of(plan));
  }

  void dispatch_cuts(Device&, Matrix<std::int64_t>, Matrix<std::int64_t>) override {
    NANOTRON_REQUIRE(false, "sums in a fixed order with messages by node");
  }

  void start_dispatch(Device& device, const ExpertRows& plan, const TokenRoutes& routes, Matrix<const T> tokens,
                      Vector<const M> weights, Matrix<T>, Vector<M>) override {
    const Vector<const std::int64_t> sources = first(plan.nodes->sources, plan.sent_rows);
    if (weights.extent(0) > 0) {
      kernels::gather_choices<M>(device, k_, of_node_, routes.experts, routes.rows, sources, weights,
                                 outer_.values_to_send(plan.sent_rows));
    }
    kernels::gather_rows<T>(device, k_, tokens, sources, outer_.to_send(plan.sent_rows));
    outer_.pack(device, plan.sent_rows);
    if (!outer_.postpone(device)) outer_.start(outer_counts_of(plan), weights.extent(0) > 0, device);
  }

  void finish_dispatch(Device& device, const ExpertRows& plan, Matrix<T> rows, Vector<M> values) override {
    const NodeRows& node = *plan.nodes;
    const index_t n = node.received_rows;
    const Vector<const std::int64_t> sources = first(node.sources_forwarded, node.forwarded_rows);
    kernels::find_places(device, received_of(plan), here_, nodes_, first(places_, plan.received_rows));
    if (values.extent(0) > 0) {
      read_received(device, node);
      kernels::gather_values<M>(device, first(weights_, n * k_), sources, inner_.values_to_send(node.forwarded_rows));
      inner_.start_values(inner_counts_of(plan), device.stream());
    }
    outer_.finish_rows(device, {}, outer_.received(n));
    kernels::gather_rows<T>(device, k_, outer_.received(n), sources, inner_.to_send(node.forwarded_rows));
    inner_.pack(device, node.forwarded_rows);
    inner_.start_rows(inner_counts_of(plan), device.stream());
    if (values.extent(0) > 0) inner_.finish_values(device, places(plan), first(values, plan.received_rows));
    inner_.finish_rows(device, places(plan), first(rows, plan.received_rows));
  }

  void start_combine(Device& device, const ExpertRows& plan, Matrix<T> rows) override {
    const NodeRows& node = *plan.nodes;
    inner_.return_rows(device, inner_counts_of(plan), places(plan), first(rows, plan.received_rows));
    const Matrix<T> sums = outer_.received(node.received_rows);
    kernels::fill<T>(device, flat(sums), 0.0);
    kernels::add_rows<T>(device, inner_.returned_rows(device, node.forwarded_rows),
                         first(node.rows_forwarded, node.received_rows * k_), sums);
    outer_.return_rows(device, outer_counts_of(plan), {}, sums);
  }
  void start_combine_values(Device& device, const ExpertRows& plan, Vector<M> values) override {
    const NodeRows& node = *plan.nodes;
    inner_.return_values(device, inner_counts_of(plan), places(plan), first(values, plan.received_rows));
    const Vector<M> of_rows(outer_.received_values(node.received_rows).data(), node.received_rows * k_);
    kernels::scatter_values<M>(device, inner_.returned_values(node.forwarded_rows),
                               first(node.rows_forwarded, node.received_rows * k_), of_rows);
    outer_.return_values(device, outer_counts_of(plan), {}, of_rows);
  }
  void add_combined(Device& device, const ExpertRows& plan, const TokenRoutes& routes, Matrix<T> y) override {
    kernels::add_rows<T>(device, outer_.returned_rows(device, plan.sent_rows),
                         first(plan.nodes->rows, static_cast<index_t>(routes.rows.extent(0))), y);
  }
  void finish_combine_values(Device& device, const ExpertRows& plan, const TokenRoutes& routes,
                             Vector<M> of_assignments) override {
    kernels::scatter_choices<M>(device, k_, of_node_, routes.experts, routes.rows,
                                first(plan.nodes->rows, static_cast<index_t>(routes.rows.extent(0))),
                                outer_.returned_values(plan.sent_rows), of_assignments);
  }
  void progress() override { outer_.progress(); }

 private:
  comm::StepTraffic exchanged(index_t across, index_t within) const {
    return comm::StepTraffic{.expert_parallel = comm::all_to_all_bytes(across, nodes_)} +
           comm::StepTraffic{.expert_parallel = comm::all_to_all_bytes(within, within_->size())};
  }
  // Parts of counts_: messages to other nodes, from them; rows to the ranks here (experts of the node, nodes), from
  // them (ranks, experts here, nodes).
  index_t outer_counts() const { return nodes_ * (1 + of_node_); }
  index_t forwarded() const { return 2 * outer_counts(); }
  index_t arrived() const { return forwarded() + size_.experts; }
  std::int64_t* at(index_t part) const { return counts_.data() == nullptr ? nullptr : counts_.data() + part; }

  Vector<std::int64_t> node_of(index_t n) const { return first(node_of_, n); }
  Matrix<std::int64_t> stretches(index_t assignments, index_t columns) const {
    return Matrix<std::int64_t>(stretches_.data(), kernels::stretches_of(assignments), columns);
  }
  Vector<std::int64_t> received_of(const ExpertRows& plan) const {
    return Vector<std::int64_t>(plan.counts.data() == nullptr ? nullptr : plan.counts.data() + size_.experts,
                                size_.experts);
  }
  // Of this layer: from its finish_dispatch to its combine.
  Vector<const std::int64_t> places(const ExpertRows& plan) const { return first(places_, plan.received_rows); }

  void exchange_counts(Device& device, comm::Group& group, const std::int64_t* sent, index_t n,
                       std::int64_t* received) {
    each_.assign(static_cast<std::size_t>(group.size()), static_cast<std::size_t>(n));
    comm::all_to_all<std::int64_t>(group, sent, each_, received, each_, device.stream());
  }

  // Where the rows of received node rows go.
  void read_received(Device& device, const NodeRows& node) {
    const index_t all = node.received_rows * k_;
    outer_.finish_values(device, {}, outer_.received_values(node.received_rows));
    const Vector<std::int64_t> experts = first(experts_, all), rows = first(node.rows_forwarded, all);
    kernels::read_choices<M>(device, k_, outer_.received_values(node.received_rows), experts, first(weights_, all),
                             rows, node.sources_forwarded);
    const Vector<std::int64_t> counts(at_rows_of_experts(), of_node_);
    kernels::assign_rows(device, experts, rows, node.sources_forwarded, counts, stretches(all, of_node_));
  }
  std::int64_t* at_rows_of_experts() const { return rows_of_.data() == nullptr ? nullptr : rows_of_.data() + nodes_; }

  index_t planned_node_rows(index_t assignments) const {
    const double tokens = static_cast<double>(assignments) / static_cast<double>(k_);
    return static_cast<index_t>(std::llround(tokens * share_of_node(size_.routing, nodes_)));
  }
  // In a plan all experts get the same number of rows, as many as the buffers hold.
  void plan_counts(Device& device, index_t assignments) {
    const NodeRowSizes& most = size_.by_node;
    const std::int64_t rows = std::min({assignments, size_.rows, most.forwarded}) / size_.experts;
    const std::int64_t of_node = std::min({planned_node_rows(assignments), most.sent / nodes_, most.received / nodes_});
    std::ranges::fill(outer_.counts(), rows);
    for (index_t node = 0; node < 2 * nodes_; ++node)
      outer_.counts()[static_cast<std::size_t>(node * (1 + of_node_))] = of_node;
    device.wait_planned();
  }

  // Counts on the host -> plan.
  void read_counts(ExpertRows& plan) const {
    NodeRows& node = *plan.nodes;
    const auto sum = [&](index_t begin, index_t n) {
      std::int64_t rows = 0;
      for (index_t i = begin; i < begin + n; ++i) rows += outer_.counts()[static_cast<std::size_t>(i)];
      return rows;
    };
    plan.sent_rows = node.received_rows = node.forwarded_rows = 0;
    for (index_t d = 0; d < nodes_; ++d) {
      const auto i = static_cast<std::size_t>(d);
      plan.sent_rows += node.sent[i] = sum(d * (1 + of_node_), 1);
      node.received_rows += node.received[i] = sum(outer_counts() + d * (1 + of_node_), 1);
    }
    const index_t of_rank = here_ * nodes_;
    for (index_t p = 0; p < within_->size(); ++p) {
      const auto i = static_cast<std::size_t>(p);
      node.forwarded_rows += node.forwarded[i] = sum(forwarded() + p * of_rank, of_rank);
      node.arrived[i] = sum(arrived() + p * of_rank, of_rank);
    }
    for (index_t e = 0; e < here_; ++e) {
      const auto i = static_cast<std::size_t>(e);
      plan.begin[i + 1] = plan.begin[i];
      for (index_t p = 0; p < within_->size(); ++p)
        plan.begin[i + 1] += sum(arrived() + p * of_rank + e * nodes_, nodes_);
    }
    plan.received_rows = plan.begin.back();
    if (size_.received != nullptr) size_.received->count(plan.received_rows, size_.assignments);
    require("the experts of this rank receive more tokens than their buffer holds", plan.received_rows, size_.rows);
    require("this rank receives more tokens of other nodes than its buffer holds", node.received_rows,
            size_.by_node.received);
    require("this rank forwards more tokens than its buffer holds", node.forwarded_rows, size_.by_node.forwarded);
  }
  void require(const std::string& what, index_t found, index_t most) const {
    if (found <= most) return;
    fail(ExitCode::deck_error,
         {.what = what,
          .expected = fmt::format("at most {} (moe%receive_factor or receive_quantile)", most),
          .found = fmt::format("{}", found),
          .where = fmt::format("rank {} of {} nodes, rank {} of {} of a node, in an expert-parallel group",
                               across_->rank(), nodes_, within_->rank(), within_->size()),
          .change = "a larger moe%receive_factor or receive_quantile, 0 for the worst case; a larger "
                    "moe%router_aux_loss_coef balances the "
                    "load"});
  }

  static RowCounts outer_counts_of(const ExpertRows& plan) { return {plan.nodes->sent, plan.nodes->received}; }
  static RowCounts inner_counts_of(const ExpertRows& plan) { return {plan.nodes->forwarded, plan.nodes->arrived}; }

  ExchangeSize size_;
  comm::Group *across_, *within_;
  index_t k_, nodes_, of_node_, here_;  // of_node_, here_: experts of a node, of this rank
  CountedMessages<T> outer_;
  RowMessages<T> inner_;
  Vector<std::int64_t> places_;   // of received rows among those sorted by expert
  Vector<std::int64_t> node_of_;  // of assignments here
  Vector<std::int64_t> experts_;  // of assignments of received node rows,
  Vector<M> weights_;             // and their weights
  Vector<std::int64_t> rows_of_;  // rows of each node; of each of its experts
  Vector<std::int64_t> stretches_, counts_;
  std::vector<std::size_t> each_;
};

}  // namespace

NodeRowSizes node_row_sizes(const ExchangeSize& size, index_t assignments, const NodeGroups& groups, bool is_expected) {
  const index_t nodes = groups.across->size(), k = size.routing.top_k;
  if (nodes == 1) return {};
  const index_t of_node = size.experts / nodes;
  const index_t limit = is_expected ? size.rows : groups.within->size() * size.rows;
  const index_t forwarded = std::min(nodes * size.tokens * std::min(k, of_node), limit);
  return {.nodes = nodes,
          .sent = size.assignments / k * std::min(nodes, k),
          .received = std::min(nodes * size.tokens, forwarded),
          .forwarded = forwarded,
          .assignments = assignments};
}

template <class T>
std::unique_ptr<ExpertExchange<T>> make_node_exchange(const ExchangeSize& size, const NodeGroups& groups,
                                                      Arena& arena) {
  return std::make_unique<NodeExchange<T>>(size, groups, arena);
}

#define NANOTRON_INSTANTIATE(T) \
  template std::unique_ptr<ExpertExchange<T>> make_node_exchange(const ExchangeSize&, const NodeGroups&, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
