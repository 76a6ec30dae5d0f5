#include "nanotron/nn/moe/expert_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/moe/expert_rows.hpp"
#include "nanotron/tensor/host_copy.hpp"
#include "nn/linear/rows.hpp"
#include "nn/moe/counted_messages.hpp"
#include "nn/moe/node_exchange.hpp"

namespace nanotron::nn {
namespace {

// In a plan all experts get the same number of rows.
void plan_copy(Device& device, index_t experts, index_t assignments, std::span<std::int64_t> to) {
  std::ranges::fill(to, assignments / experts);
  device.wait_planned();
}

index_t assignments_of(const TokenRoutes& routes) { return static_cast<index_t>(routes.sources.extent(0)); }

// Tokens, and the weights of assignments where there are any, as rows.
template <class T>
void gather(Device& device, const ExpertRows& plan, const TokenRoutes& routes, const Matrix<const T>& tokens,
            const Vector<const master_t<T>>& weights, const Matrix<T>& rows, const Vector<master_t<T>>& values) {
  const Vector<const std::int64_t> sources = first(routes.sources, plan.sent_rows);
  if (weights.extent(0) > 0) kernels::gather_values<master_t<T>>(device, weights, sources, values);
  kernels::gather_rows<T>(device, routes.top_k, tokens, sources, rows);
}

// Rows stay in place. The host counts them.
template <class T>
class LocalExperts : public ExpertExchange<T> {
 public:
  using M = master_t<T>;
  LocalExperts(const ExchangeSize& size, const Arena& arena) : rows_(size.rows) {
    if (!arena.is_planning()) copy_.emplace(static_cast<std::size_t>(size.experts));
  }

  index_t rows() const override { return rows_; }
  bool is_local() const override { return true; }
  PassTraffic traffic() const override { return {}; }

  void start_plan(Device& device, const TokenRoutes& routes, Vector<std::int64_t> counts, ExpertRows& plan) override {
    if (device.is_planning()) {
      plan_copy(device, static_cast<index_t>(counts.extent(0)), assignments_of(routes), plan.sent);
    } else {
      copy_->start(device, counts);
      copy_->wait();
      std::ranges::copy(copy_->values(), plan.sent.begin());
    }
    for (std::size_t e = 0; e < plan.sent.size(); ++e) plan.begin[e + 1] = plan.begin[e] + plan.sent[e];
    plan.sent_rows = plan.received_rows = plan.begin.back();
  }
  void finish_plan(Device&, ExpertRows&) override {}

  void dispatch_cuts(Device& device, Matrix<std::int64_t> from_here, Matrix<std::int64_t> cuts) override {
    kernels::copy<std::int64_t>(device, flat(from_here), flat(cuts));
  }

  void start_dispatch(Device& device, const ExpertRows& plan, const TokenRoutes& routes, Matrix<const T> tokens,
                      Vector<const M> weights, Matrix<T> rows, Vector<M> values) override {
    gather(device, plan, routes, tokens, weights, first(rows, plan.sent_rows), first(values, plan.sent_rows));
  }
  void finish_dispatch(Device&, const ExpertRows&, Matrix<T>, Vector<M>) override {}
  void start_combine(Device&, const ExpertRows& plan, Matrix<T> rows) override {
    combined_ = first(rows, plan.sent_rows);
  }
  void start_combine_values(Device&, const ExpertRows& plan, Vector<M> values) override {
    combined_values_ = first(values, plan.sent_rows);
  }
  void add_combined(Device& device, const ExpertRows&, const TokenRoutes& routes, Matrix<T> y) override {
    kernels::add_rows<T>(device, combined_, routes.rows, y);
  }
  void finish_combine_values(Device& device, const ExpertRows&, const TokenRoutes& routes,
                             Vector<M> of_assignments) override {
    kernels::scatter_values<M>(device, combined_values_, routes.rows, of_assignments);
  }

 private:
  index_t rows_;
  std::optional<HostCopy> copy_;  // none in a plan
  Matrix<T> combined_;
  Vector<M> combined_values_;
};

// The host counts nothing.
template <class T>
class GroupedLocalExperts final : public LocalExperts<T> {
 public:
  using LocalExperts<T>::LocalExperts;

  void start_plan(Device& device, const TokenRoutes& routes, Vector<std::int64_t> counts, ExpertRows& plan) override {
    kernels::expert_offsets(device, Matrix<const std::int64_t>(counts.data(), 1, counts.extent(0)), 1, plan.offsets);
    plan.sent_rows = plan.received_rows = assignments_of(routes);
  }
};

// Received messages are sorted by source rank, then expert; rows by expert, then source rank.
template <class T>
class ExchangedExperts final : public ExpertExchange<T> {
 public:
  using M = master_t<T>;
  ExchangedExperts(const ExchangeSize& size, comm::Group& ep, Arena& arena)
      : size_(size),
        ep_(&ep),
        messages_({.sent = size.assignments, .received = size.rows, .hidden = size.hidden, .row_type = size.row_type},
                  ep, 2 * size.experts, arena),
        places_(arena.take<std::int64_t>(MemoryKind::workspace, size.rows)),
        received_cuts_(arena.take<std::int64_t>(MemoryKind::workspace, size.experts * size.cuts.boundaries_on_rank())) {
    each_.reserve(static_cast<std::size_t>(ep.size()));
    for (std::vector<std::int64_t>* rows : {&sent_, &received_}) rows->resize(static_cast<std::size_t>(ep.size()));
  }

  index_t rows() const override { return size_.rows; }
  bool is_local() const override { return false; }
  // Forward: counts and cuts; rows and weights in dispatch, rows in combine. Backward: dispatch of dy rows; combine of
  // gradients of rows and weights.
  PassTraffic traffic() const override {
    const index_t dispatched = size_.assignments * messages_.sent_bytes(),
                  returned = size_.assignments * messages_.returned_bytes();
    const index_t weights = size_.assignments * static_cast<index_t>(sizeof(M));
    const index_t counts =
        size_.experts * (1 + size_.cuts.boundaries_on_rank()) * static_cast<index_t>(sizeof(std::int64_t));
    return {.forward = exchanged(dispatched + weights + counts),
            .backward = exchanged(dispatched + returned + weights),
            .output = exchanged(returned)};
  }

  comm::StepTraffic dispatch_traffic() const override { return exchanged(size_.assignments * messages_.sent_bytes()); }

  void start_plan(Device& device, const TokenRoutes& routes, Vector<std::int64_t> counts, ExpertRows& plan) override {
    const index_t here = experts_here();
    const Vector<std::int64_t> sent(plan.counts.data(), counts.extent(0));
    kernels::copy<std::int64_t>(device, counts, sent);
    exchange_counts(sent.data(), here, received_of(plan).data(), device);
    if (size_.gemms == deck::ExpertGemms::grouped) {
      kernels::expert_offsets(device, Matrix<const std::int64_t>(received_of(plan).data(), ep_->size(), here), 1,
                              plan.offsets);
    }
    plan.sent_rows = assignments_of(routes);
    if (device.is_planning())
      plan_copy(device, 2 * size_.experts, 2 * std::min(plan.sent_rows, size_.rows), messages_.counts());
    if (messages_.start_counts(device, flat(plan.counts))) read_counts(plan);
  }

  void finish_plan(Device&, ExpertRows& plan) override {
    if (!messages_.finish_counts()) return;
    read_counts(plan);
    messages_.start_waiting(counted(plan));
  }

  void dispatch_cuts(Device& device, Matrix<std::int64_t> from_here, Matrix<std::int64_t> cuts) override {
    exchange_counts(from_here.data(), experts_here() * size_.cuts.boundaries_on_rank(), received_cuts_.data(), device);
    kernels::join_cuts(device, received_cuts_, experts_here(), size_.cuts.sequences, size_.cuts.slices, cuts);
  }

  void start_dispatch(Device& device, const ExpertRows& plan, const TokenRoutes& routes, Matrix<const T> tokens,
                      Vector<const M> weights, Matrix<T>, Vector<M>) override {
    gather(device, plan, routes, tokens, weights, messages_.to_send(plan.sent_rows),
           messages_.values_to_send(plan.sent_rows));
    messages_.pack(device, plan.sent_rows);
    if (!messages_.postpone(device)) messages_.start(counted(plan), weights.extent(0) > 0, device);
  }
  void finish_dispatch(Device& device, const ExpertRows& plan, Matrix<T> rows, Vector<M> values) override {
    kernels::find_places(device, received_of(plan), experts_here(), 1, first(places_, plan.received_rows));
    if (values.extent(0) > 0) messages_.finish_values(device, places(plan), first(values, plan.received_rows));
    messages_.finish_rows(device, places(plan), first(rows, plan.received_rows));
  }
  void start_combine(Device& device, const ExpertRows& plan, Matrix<T> rows) override {
    messages_.return_rows(device, counted(plan), places(plan), first(rows, plan.received_rows));
  }
  void start_combine_values(Device& device, const ExpertRows& plan, Vector<M> values) override {
    messages_.return_values(device, counted(plan), places(plan), first(values, plan.received_rows));
  }
  void add_combined(Device& device, const ExpertRows& plan, const TokenRoutes& routes, Matrix<T> y) override {
    kernels::add_rows<T>(device, messages_.returned_rows(device, plan.sent_rows), routes.rows, y);
  }
  void finish_combine_values(Device& device, const ExpertRows& plan, const TokenRoutes& routes,
                             Vector<M> of_assignments) override {
    kernels::scatter_values<M>(device, messages_.returned_values(plan.sent_rows), routes.rows, of_assignments);
  }
  void progress() override { messages_.progress(); }

 private:
  comm::StepTraffic exchanged(index_t bytes) const {
    return {.expert_parallel = comm::all_to_all_bytes(bytes, ep_->size())};
  }
  index_t experts_here() const { return size_.experts / ep_->size(); }
  Vector<std::int64_t> received_of(const ExpertRows& plan) const {
    return Vector<std::int64_t>(plan.counts.data() == nullptr ? nullptr : plan.counts.data() + size_.experts,
                                size_.experts);
  }
  // Of this layer: from its finish_dispatch to its combine.
  Vector<const std::int64_t> places(const ExpertRows& plan) const { return first(places_, plan.received_rows); }

  // n numbers to each rank and from it.
  void exchange_counts(const std::int64_t* sent, index_t n, std::int64_t* received, Device& device) {
    each_.assign(static_cast<std::size_t>(ep_->size()), static_cast<std::size_t>(n));
    comm::all_to_all<std::int64_t>(*ep_, sent, each_, received, each_, device.stream());
  }

  // Counts on the host -> plan.
  void read_counts(ExpertRows& plan) const {
    const auto here = plan.begin.size() - 1, ranks = sent_.size();
    std::copy_n(messages_.counts().begin(), plan.sent.size(), plan.sent.begin());
    std::copy_n(messages_.counts().begin() + size_.experts, plan.received.size(), plan.received.begin());
    plan.sent_rows = 0;
    for (const std::int64_t n : plan.sent) plan.sent_rows += n;
    for (std::size_t e = 0; e < here; ++e) {
      plan.begin[e + 1] = plan.begin[e];
      for (std::size_t r = 0; r < ranks; ++r) plan.begin[e + 1] += plan.received[r * here + e];
    }
    plan.received_rows = plan.begin.back();
    if (size_.received != nullptr) size_.received->count(plan.received_rows, size_.assignments);
    if (plan.received_rows > size_.rows) {
      fail(ExitCode::deck_error,
           {.what = "the experts of this rank receive more tokens than their buffer holds",
            .expected = fmt::format("at most {} (moe%receive_factor or receive_quantile)", size_.rows),
            .found = fmt::format("{}, {:.2f} of an even load", plan.received_rows,
                                 static_cast<double>(plan.received_rows) / static_cast<double>(size_.assignments)),
            .where = fmt::format("rank {} of an expert-parallel group of {}", ep_->rank(), ep_->size()),
            .change = "a larger moe%receive_factor or receive_quantile, 0 for the worst case; a larger "
                      "moe%router_aux_loss_coef balances the load"});
    }
  }

  // Rows sent to each rank and received from it.
  RowCounts counted(const ExpertRows& plan) {
    const auto here = plan.begin.size() - 1;
    for (std::size_t r = 0; r < sent_.size(); ++r) {
      sent_[r] = received_[r] = 0;
      for (std::size_t e = r * here; e < (r + 1) * here; ++e) {
        sent_[r] += plan.sent[e];
        received_[r] += plan.received[e];
      }
    }
    return {sent_, received_};
  }

  ExchangeSize size_;
  comm::Group* ep_;
  CountedMessages<T> messages_;
  Vector<std::int64_t> places_;  // of received rows among those sorted by expert
  Vector<std::int64_t> received_cuts_;
  std::vector<std::int64_t> sent_, received_;  // rows to each rank, and from each
  std::vector<std::size_t> each_;
};

}  // namespace

template <class T>
std::unique_ptr<ExpertExchange<T>> make_expert_exchange(const ExchangeSize& size, comm::Group& ep,
                                                        const NodeGroups& nodes, Arena& arena) {
  if (nodes.across->size() > 1) return make_node_exchange<T>(size, nodes, arena);
  if (ep.size() > 1) return std::make_unique<ExchangedExperts<T>>(size, ep, arena);
  if (size.gemms == deck::ExpertGemms::grouped) return std::make_unique<GroupedLocalExperts<T>>(size, arena);
  return std::make_unique<LocalExperts<T>>(size, arena);
}

#define NANOTRON_INSTANTIATE(T)                                                                       \
  template std::unique_ptr<ExpertExchange<T>> make_expert_exchange(const ExchangeSize&, comm::Group&, \
                                                                   const NodeGroups&, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
