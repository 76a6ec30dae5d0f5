#include "nanotron/nn/moe/expert_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/moe/expert_rows.hpp"
#include "nanotron/kernels/moe/routing.hpp"
#include "nn/linear/rows.hpp"

namespace nanotron::nn {
namespace {

// Waits for the device. In a plan all experts get the same number of rows.
void copy_out(Device& device, const Vector<std::int64_t>& from, index_t assignments, std::vector<std::int64_t>& to) {
  if (device.is_planning()) {
    std::ranges::fill(to, assignments / static_cast<index_t>(from.extent(0)));
    return device.wait_planned();
  }
  using Host = Kokkos::View<std::int64_t*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  Kokkos::deep_copy(device.exec(), Host(to.data(), to.size()), from);
  device.fence();
}

// Rows stay in place. The host counts them.
template <class T>
class LocalExperts : public ExpertExchange<T> {
 public:
  using M = master_t<T>;
  explicit LocalExperts(index_t rows) : rows_(rows) {}

  index_t rows() const override { return rows_; }
  PassTraffic traffic() const override { return {}; }

  void plan(Device& device, Vector<std::int64_t> counts, index_t assignments, ExpertRows& plan) override {
    copy_out(device, counts, assignments, plan.sent);
    for (std::size_t e = 0; e < plan.sent.size(); ++e) plan.begin[e + 1] = plan.begin[e] + plan.sent[e];
    plan.sent_rows = plan.received_rows = plan.begin.back();
  }

  void dispatch_cuts(Device& device, Matrix<std::int64_t> from_here, Matrix<std::int64_t> cuts) override {
    kernels::copy<std::int64_t>(device, flat(from_here), flat(cuts));
  }

  Matrix<T> send_buffer(const ExpertRows& plan, Matrix<T> rows) override { return first(rows, plan.sent_rows); }
  Vector<M> send_buffer_values(const ExpertRows& plan, Vector<M> values) override {
    return first(values, plan.sent_rows);
  }
  void dispatch(Device&, const ExpertRows&, Matrix<T>) override {}
  void dispatch_values(Device&, const ExpertRows&, Vector<M>) override {}
  Matrix<const T> combine(Device&, const ExpertRows& plan, Matrix<T> rows) override {
    return first(rows, plan.sent_rows);
  }
  Vector<const M> combine_values(Device&, const ExpertRows& plan, Vector<M> values) override {
    return Vector<const M>(values.data(), plan.sent_rows);
  }

 private:
  index_t rows_;
};

// The host counts nothing.
template <class T>
class GroupedLocalExperts final : public LocalExperts<T> {
 public:
  using LocalExperts<T>::LocalExperts;

  void plan(Device& device, Vector<std::int64_t> counts, index_t assignments, ExpertRows& plan) override {
    kernels::expert_offsets(device, Matrix<const std::int64_t>(counts.data(), 1, counts.extent(0)), plan.offsets);
    plan.sent_rows = plan.received_rows = assignments;
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
        send_buffer_(arena.take<T>(MemoryKind::workspace, size.assignments, size.hidden)),
        receive_buffer_(arena.take<T>(MemoryKind::workspace, size.rows, size.hidden)),
        value_send_buffer_(arena.take<M>(MemoryKind::workspace, size.assignments)),
        value_receive_buffer_(arena.take<M>(MemoryKind::workspace, size.rows)),
        counts_(arena.take<std::int64_t>(MemoryKind::workspace, 2, size.experts)),
        received_cuts_(arena.take<std::int64_t>(MemoryKind::workspace, size.experts * size.cuts.boundaries_on_rank())),
        sent_counts_(static_cast<std::size_t>(ep.size())),
        received_counts_(static_cast<std::size_t>(ep.size())),
        host_counts_(2 * static_cast<std::size_t>(size.experts)),
        next_(static_cast<std::size_t>(size.experts / ep.size() + 1)) {}

  index_t rows() const override { return size_.rows; }
  // Forward: counts and cuts; rows and weights in dispatch, rows in combine. Backward: dispatch of dy rows; combine of
  // gradients of rows and weights.
  PassTraffic traffic() const override {
    const index_t rows = size_.assignments * size_.hidden * static_cast<index_t>(sizeof(T));
    const index_t weights = size_.assignments * static_cast<index_t>(sizeof(M));
    const index_t counts =
        size_.experts * (1 + size_.cuts.boundaries_on_rank()) * static_cast<index_t>(sizeof(std::int64_t));
    const auto exchanged = [&](index_t bytes) {
      return comm::StepTraffic{.expert_parallel = comm::all_to_all_bytes(bytes, ep_->size())};
    };
    return {.forward = exchanged(rows + weights + counts),
            .backward = exchanged(2 * rows + weights),
            .output = exchanged(rows)};
  }

  void plan(Device& device, Vector<std::int64_t> counts, index_t assignments, ExpertRows& plan) override {
    const auto here = plan.begin.size() - 1, ranks = sent_counts_.size();
    std::ranges::fill(sent_counts_, here);
    std::ranges::fill(received_counts_, here);
    const Vector<std::int64_t> sent(counts_.data(), counts.extent(0));
    kernels::copy<std::int64_t>(device, counts, sent);
    comm::all_to_all<std::int64_t>(*ep_, sent.data(), sent_counts_, sent.data() + sent.extent(0), received_counts_,
                                   device.stream());
    if (size_.gemms == deck::ExpertGemms::grouped) {
      kernels::expert_offsets(device, Matrix<const std::int64_t>(sent.data() + sent.extent(0), ranks, here),
                              plan.offsets);
    }
    copy_out(device, flat(counts_), 2 * assignments, host_counts_);
    std::copy_n(host_counts_.begin(), plan.sent.size(), plan.sent.begin());
    std::copy_n(host_counts_.begin() + size_.experts, plan.received.size(), plan.received.begin());
    plan.sent_rows = 0;
    for (const std::int64_t n : plan.sent) plan.sent_rows += n;
    for (std::size_t e = 0; e < here; ++e) {
      plan.begin[e + 1] = plan.begin[e];
      for (std::size_t r = 0; r < ranks; ++r) plan.begin[e + 1] += plan.received[r * here + e];
    }
    plan.received_rows = plan.begin.back();
    if (plan.received_rows > size_.rows) {
      fail(ExitCode::deck_error,
           {.what = "the experts of this rank receive more tokens than their buffer holds",
            .expected = fmt::format("at most {} (moe%receive_factor)", size_.rows),
            .found = fmt::format("{}", plan.received_rows),
            .where = fmt::format("rank {} of an expert-parallel group of {}", ep_->rank(), ep_->size()),
            .change = "a larger moe%receive_factor, 0 for the worst case; a larger "
                      "moe%router_aux_loss_coef balances the load"});
    }
  }

  void dispatch_cuts(Device& device, Matrix<std::int64_t> from_here, Matrix<std::int64_t> cuts) override {
    const index_t here = size_.experts / ep_->size();
    std::ranges::fill(sent_counts_, static_cast<std::size_t>(here * size_.cuts.boundaries_on_rank()));
    comm::all_to_all<std::int64_t>(*ep_, from_here.data(), sent_counts_, received_cuts_.data(), sent_counts_,
                                   device.stream());
    kernels::join_cuts(device, received_cuts_, here, size_.cuts.sequences, cuts);
  }

  Matrix<T> send_buffer(const ExpertRows& plan, Matrix<T>) override { return first(send_buffer_, plan.sent_rows); }
  Vector<M> send_buffer_values(const ExpertRows& plan, Vector<M>) override {
    return first(value_send_buffer_, plan.sent_rows);
  }

  void dispatch(Device& device, const ExpertRows& plan, Matrix<T> rows) override {
    dispatch_rows<T>(device, plan, MatrixRef<T>(send_buffer_), MatrixRef<T>(receive_buffer_), MatrixRef<T>(rows));
  }
  void dispatch_values(Device& device, const ExpertRows& plan, Vector<M> values) override {
    dispatch_rows<M>(device, plan, column(value_send_buffer_), column(value_receive_buffer_), column(values));
  }
  Matrix<const T> combine(Device& device, const ExpertRows& plan, Matrix<T> rows) override {
    combine_rows<T>(device, plan, MatrixRef<T>(rows), MatrixRef<T>(receive_buffer_), MatrixRef<T>(send_buffer_));
    return first(send_buffer_, plan.sent_rows);
  }
  Vector<const M> combine_values(Device& device, const ExpertRows& plan, Vector<M> values) override {
    combine_rows<M>(device, plan, column(values), column(value_receive_buffer_), column(value_send_buffer_));
    return Vector<const M>(value_send_buffer_.data(), plan.sent_rows);
  }

 private:
  static MatrixRef<M> column(const Vector<M>& v) { return {v.data(), static_cast<index_t>(v.extent(0)), 1}; }

  // Elements sent to and received from each rank, for rows of `columns` columns.
  void count(const ExpertRows& plan, index_t columns) {
    const auto here = plan.begin.size() - 1;
    for (std::size_t r = 0; r < sent_counts_.size(); ++r) {
      std::int64_t sent = 0, received = 0;
      for (std::size_t e = r * here; e < (r + 1) * here; ++e) {
        sent += plan.sent[e];
        received += plan.received[e];
      }
      sent_counts_[r] = static_cast<std::size_t>(sent * columns);
      received_counts_[r] = static_cast<std::size_t>(received * columns);
    }
  }

  // f(first row in the messages, first row sorted by expert, number of rows) for each source rank and local expert.
  template <class F>
  void for_each_block(const ExpertRows& plan, const F& f) {
    const auto here = plan.begin.size() - 1;
    std::ranges::copy(plan.begin, next_.begin());
    index_t in_message = 0;
    for (std::size_t i = 0; i < plan.received.size(); ++i) {
      const index_t rows = plan.received[i];
      index_t& at = next_[i % here];
      if (rows > 0) f(in_message, at, rows);
      at += rows;
      in_message += rows;
    }
  }

  template <class U>
  void dispatch_rows(Device& device, const ExpertRows& plan, MatrixRef<U> send_buffer, MatrixRef<U> receive_buffer,
                     MatrixRef<U> rows) {
    count(plan, rows.columns);
    comm::all_to_all<U>(*ep_, send_buffer.data, sent_counts_, receive_buffer.data, received_counts_, device.stream());
    for_each_block(plan, [&](index_t in_message, index_t at, index_t n) {
      kernels::copy_matrix<U>(device, receive_buffer.row_block(in_message, n), rows.row_block(at, n));
    });
  }

  template <class U>
  void combine_rows(Device& device, const ExpertRows& plan, MatrixRef<U> rows, MatrixRef<U> receive_buffer,
                    MatrixRef<U> send_buffer) {
    count(plan, rows.columns);
    for_each_block(plan, [&](index_t in_message, index_t at, index_t n) {
      kernels::copy_matrix<U>(device, rows.row_block(at, n), receive_buffer.row_block(in_message, n));
    });
    comm::all_to_all<U>(*ep_, receive_buffer.data, received_counts_, send_buffer.data, sent_counts_, device.stream());
  }

  ExchangeSize size_;
  comm::Group* ep_;
  Matrix<T> send_buffer_, receive_buffer_;
  Vector<M> value_send_buffer_, value_receive_buffer_;
  Matrix<std::int64_t> counts_;  // rows per expert: sent from here, received from each rank
  Vector<std::int64_t> received_cuts_;
  std::vector<std::size_t> sent_counts_, received_counts_;  // per rank
  std::vector<std::int64_t> host_counts_;
  std::vector<std::int64_t> next_;  // next row of each local expert
};

}  // namespace

template <class T>
std::unique_ptr<ExpertExchange<T>> make_expert_exchange(const ExchangeSize& size, comm::Group& ep, Arena& arena) {
  if (ep.size() > 1) return std::make_unique<ExchangedExperts<T>>(size, ep, arena);
  if (size.gemms == deck::ExpertGemms::grouped) return std::make_unique<GroupedLocalExperts<T>>(size.rows);
  return std::make_unique<LocalExperts<T>>(size.rows);
}

#define NANOTRON_INSTANTIATE(T) \
  template std::unique_ptr<ExpertExchange<T>> make_expert_exchange(const ExchangeSize&, comm::Group&, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
