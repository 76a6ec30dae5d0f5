#include "nanotron/nn/moe/expert_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/moe/expert_rows.hpp"
#include "nanotron/kernels/moe/routing.hpp"
#include "nanotron/kernels/moe/wire_rows.hpp"
#include "nanotron/tensor/host_copy.hpp"
#include "nn/linear/rows.hpp"

namespace nanotron::nn {
namespace {

// In a plan all experts get the same number of rows.
void plan_copy(Device& device, index_t experts, index_t assignments, std::vector<std::int64_t>& to) {
  std::ranges::fill(to, assignments / experts);
  device.wait_planned();
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

  void start_plan(Device& device, Vector<std::int64_t> counts, index_t assignments, ExpertRows& plan) override {
    if (device.is_planning()) {
      plan_copy(device, static_cast<index_t>(counts.extent(0)), assignments, plan.sent);
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

  Matrix<T> send_buffer(const ExpertRows& plan, Matrix<T> rows) override { return first(rows, plan.sent_rows); }
  Vector<M> send_buffer_values(const ExpertRows& plan, Vector<M> values) override {
    return first(values, plan.sent_rows);
  }
  void start_dispatch(Device&, const ExpertRows&) override {}
  void start_dispatch_rows(Device&, const ExpertRows&) override {}
  void finish_dispatch(Device&, const ExpertRows&, Matrix<T>, Vector<M>) override {}
  void start_combine(Device&, const ExpertRows& plan, Matrix<T> rows) override {
    combined_ = first(rows, plan.sent_rows);
  }
  void start_combine_values(Device&, const ExpertRows& plan, Vector<M> values) override {
    combined_values_ = first(values, plan.sent_rows);
  }
  Matrix<const T> finish_combine(Device&, const ExpertRows&) override { return combined_; }
  Vector<const M> finish_combine_values(Device&, const ExpertRows&) override { return combined_values_; }

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

  void start_plan(Device& device, Vector<std::int64_t> counts, index_t assignments, ExpertRows& plan) override {
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
        receive_buffer_(arena.take<T>(
            MemoryKind::workspace,
            kernels::is_packed<T>(size.row_type) && kernels::is_packed<T>(kernels::returned_as(size.row_type))
                ? 0
                : size.rows,
            size.hidden)),
        sent_words_(arena.take<std::uint64_t>(MemoryKind::workspace, size.assignments * max_words(size))),
        received_words_(arena.take<std::uint64_t>(MemoryKind::workspace, size.rows * max_words(size))),
        value_send_buffer_(arena.take<M>(MemoryKind::workspace, size.assignments)),
        value_receive_buffer_(arena.take<M>(MemoryKind::workspace, size.rows)),
        counts_(arena.take<std::int64_t>(MemoryKind::workspace, 2, size.experts)),
        received_cuts_(arena.take<std::int64_t>(MemoryKind::workspace, size.experts * size.cuts.boundaries_on_rank())),
        sent_counts_(static_cast<std::size_t>(ep.size())),
        received_counts_(static_cast<std::size_t>(ep.size())),
        host_counts_(2 * static_cast<std::size_t>(size.experts)),
        next_(static_cast<std::size_t>(size.experts / ep.size() + 1)) {
    if (!arena.is_planning()) copy_.emplace(host_counts_.size());
  }

  index_t rows() const override { return size_.rows; }
  bool is_local() const override { return false; }
  // Forward: counts and cuts; rows and weights in dispatch, rows in combine. Backward: dispatch of dy rows; combine of
  // gradients of rows and weights.
  PassTraffic traffic() const override {
    const index_t dispatched = size_.assignments * row_bytes(size_.row_type),
                  returned = size_.assignments * row_bytes(kernels::returned_as(size_.row_type));
    const index_t weights = size_.assignments * static_cast<index_t>(sizeof(M));
    const index_t counts =
        size_.experts * (1 + size_.cuts.boundaries_on_rank()) * static_cast<index_t>(sizeof(std::int64_t));
    const auto exchanged = [&](index_t bytes) {
      return comm::StepTraffic{.expert_parallel = comm::all_to_all_bytes(bytes, ep_->size())};
    };
    return {.forward = exchanged(dispatched + weights + counts),
            .backward = exchanged(dispatched + returned + weights),
            .output = exchanged(returned)};
  }

  void start_plan(Device& device, Vector<std::int64_t> counts, index_t assignments, ExpertRows& plan) override {
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
    plan.sent_rows = assignments;
    if (device.is_planning()) {
      plan_copy(device, 2 * size_.experts, 2 * assignments, host_counts_);
      return read_counts(plan);
    }
    copy_->start(device, flat(counts_));
    if (!copy_->is_running()) read_copy(plan);
  }

  void finish_plan(Device&, ExpertRows& plan) override {
    if (!is_counting()) return;
    copy_->wait();
    read_copy(plan);
    if (!values_ready_) return;
    start_values(plan, *values_ready_);
    start_rows(plan, *rows_ready_);
    values_ready_.reset();
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

  void start_dispatch(Device& device, const ExpertRows& plan) override {
    pack_dispatch(device, plan);
    if (is_counting()) {
      values_ready_ = comm::mark(*ep_, device.stream());
      rows_ready_ = comm::mark(*ep_, device.stream());
      return;
    }
    start_values(plan, device.stream());
    start_rows(plan, device.stream());
  }
  void start_dispatch_rows(Device& device, const ExpertRows& plan) override {
    pack_dispatch(device, plan);
    start_rows(plan, device.stream());
  }
  void finish_dispatch(Device& device, const ExpertRows& plan, Matrix<T> rows, Vector<M> values) override {
    in_flight_[of_values].wait();
    if (values.extent(0) > 0) sort<M>(device, plan, column(value_receive_buffer_), column(values));
    in_flight_[of_rows].wait();
    if (!kernels::is_packed<T>(size_.row_type))
      return sort<T>(device, plan, MatrixRef<T>(receive_buffer_), MatrixRef<T>(rows));
    for_each_block(plan, [&](index_t in_message, index_t at, index_t n) {
      kernels::unpack_rows<T>(device, size_.row_type, words<const std::uint64_t>(received_words_, in_message, n),
                              rows_of(rows, {at, at + n}));
    });
  }
  void start_combine(Device& device, const ExpertRows& plan, Matrix<T> rows) override {
    if (kernels::is_packed<T>(kernels::returned_as(size_.row_type))) return start_packed_combine(device, plan, rows);
    unsort<T>(device, plan, MatrixRef<T>(rows), MatrixRef<T>(receive_buffer_));
    count(plan, size_.hidden);
    in_flight_[of_rows] = comm::start_all_to_all<T>(*ep_, receive_buffer_.data(), received_counts_, send_buffer_.data(),
                                                    sent_counts_, device.stream());
  }
  void start_combine_values(Device& device, const ExpertRows& plan, Vector<M> values) override {
    unsort<M>(device, plan, column(values), column(value_receive_buffer_));
    count(plan, 1);
    in_flight_[of_values] = comm::start_all_to_all<M>(*ep_, value_receive_buffer_.data(), received_counts_,
                                                      value_send_buffer_.data(), sent_counts_, device.stream());
  }
  Matrix<const T> finish_combine(Device& device, const ExpertRows& plan) override {
    in_flight_[of_rows].wait();
    const deck::ExpertRowType type = kernels::returned_as(size_.row_type);
    if (kernels::is_packed<T>(type)) {
      kernels::unpack_rows<T>(device, type, words<const std::uint64_t>(sent_words_, 0, plan.sent_rows, type),
                              first(send_buffer_, plan.sent_rows));
    }
    return first(send_buffer_, plan.sent_rows);
  }
  Vector<const M> finish_combine_values(Device&, const ExpertRows& plan) override {
    in_flight_[of_values].wait();
    return Vector<const M>(value_send_buffer_.data(), plan.sent_rows);
  }
  void progress() override {
    in_flight_[of_values].test();
    in_flight_[of_rows].test();
  }

 private:
  enum Message { of_values, of_rows };

  static MatrixRef<M> column(const Vector<M>& v) { return {v.data(), static_cast<index_t>(v.extent(0)), 1}; }
  bool is_counting() const { return copy_.has_value() && copy_->is_running(); }

  void read_copy(ExpertRows& plan) {
    std::ranges::copy(copy_->values(), host_counts_.begin());
    read_counts(plan);
  }

  // host_counts_ -> plan.
  void read_counts(ExpertRows& plan) const {
    const auto here = plan.begin.size() - 1, ranks = sent_counts_.size();
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

  static index_t max_words(const ExchangeSize& size) {
    index_t words = 0;
    for (const deck::ExpertRowType type : {size.row_type, kernels::returned_as(size.row_type)}) {
      if (kernels::is_packed<T>(type)) words = std::max(words, kernels::wire_words(type, size.hidden));
    }
    return words;
  }
  index_t row_bytes(deck::ExpertRowType type) const {
    return kernels::is_packed<T>(type) ? 8 * kernels::wire_words(type, size_.hidden)
                                       : size_.hidden * static_cast<index_t>(sizeof(T));
  }
  // Rows [at, at + n) of a message in the form of dispatch, or of another type.
  template <class U>
  Matrix<U> words(const Vector<std::uint64_t>& all, index_t at, index_t n,
                  std::optional<deck::ExpertRowType> type = {}) const {
    const index_t width = kernels::wire_words(type.value_or(size_.row_type), size_.hidden);
    return Matrix<U>(all.data() == nullptr ? nullptr : all.data() + at * width, n, width);
  }
  void pack_dispatch(Device& device, const ExpertRows& plan) {
    if (!kernels::is_packed<T>(size_.row_type)) return;
    kernels::pack_rows<T>(device, size_.row_type, Matrix<const T>(first(send_buffer_, plan.sent_rows)),
                          words<std::uint64_t>(sent_words_, 0, plan.sent_rows));
  }
  void start_packed_combine(Device& device, const ExpertRows& plan, const Matrix<T>& rows) {
    const deck::ExpertRowType type = kernels::returned_as(size_.row_type);
    for_each_block(plan, [&](index_t in_message, index_t at, index_t n) {
      kernels::pack_rows<T>(device, type, Matrix<const T>(rows_of(rows, {at, at + n})),
                            words<std::uint64_t>(received_words_, in_message, n, type));
    });
    count(plan, kernels::wire_words(type, size_.hidden));
    in_flight_[of_rows] = comm::start_all_to_all<std::uint64_t>(*ep_, received_words_.data(), received_counts_,
                                                                sent_words_.data(), sent_counts_, device.stream());
  }

  void start_rows(const ExpertRows& plan, const comm::StreamPoint& after) {
    if (kernels::is_packed<T>(size_.row_type)) {
      count(plan, kernels::wire_words(size_.row_type, size_.hidden));
      in_flight_[of_rows] = comm::start_all_to_all<std::uint64_t>(*ep_, sent_words_.data(), sent_counts_,
                                                                  received_words_.data(), received_counts_, after);
      return;
    }
    count(plan, size_.hidden);
    in_flight_[of_rows] = comm::start_all_to_all<T>(*ep_, send_buffer_.data(), sent_counts_, receive_buffer_.data(),
                                                    received_counts_, after);
  }
  void start_values(const ExpertRows& plan, const comm::StreamPoint& after) {
    count(plan, 1);
    in_flight_[of_values] = comm::start_all_to_all<M>(*ep_, value_send_buffer_.data(), sent_counts_,
                                                      value_receive_buffer_.data(), received_counts_, after);
  }

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
  void sort(Device& device, const ExpertRows& plan, MatrixRef<U> received, MatrixRef<U> rows) {
    for_each_block(plan, [&](index_t in_message, index_t at, index_t n) {
      kernels::copy_matrix<U>(device, received.row_block(in_message, n), rows.row_block(at, n));
    });
  }
  template <class U>
  void unsort(Device& device, const ExpertRows& plan, MatrixRef<U> rows, MatrixRef<U> to_send) {
    for_each_block(plan, [&](index_t in_message, index_t at, index_t n) {
      kernels::copy_matrix<U>(device, rows.row_block(at, n), to_send.row_block(in_message, n));
    });
  }

  ExchangeSize size_;
  comm::Group* ep_;
  Matrix<T> send_buffer_, receive_buffer_;
  Vector<std::uint64_t> sent_words_, received_words_;  // of rows that travel in a narrower form
  Vector<M> value_send_buffer_, value_receive_buffer_;
  Matrix<std::int64_t> counts_;  // rows per expert: sent from here, received from each rank
  Vector<std::int64_t> received_cuts_;
  std::vector<std::size_t> sent_counts_, received_counts_;  // per rank
  std::vector<std::int64_t> host_counts_;
  std::vector<std::int64_t> next_;                              // next row of each local expert
  std::optional<HostCopy> copy_;                                // none in a plan
  std::optional<comm::StreamPoint> values_ready_, rows_ready_;  // of a dispatch that waits for the counts
  std::vector<comm::Request> in_flight_ = std::vector<comm::Request>(2);
};

}  // namespace

template <class T>
std::unique_ptr<ExpertExchange<T>> make_expert_exchange(const ExchangeSize& size, comm::Group& ep, Arena& arena) {
  if (ep.size() > 1) return std::make_unique<ExchangedExperts<T>>(size, ep, arena);
  if (size.gemms == deck::ExpertGemms::grouped) return std::make_unique<GroupedLocalExperts<T>>(size, arena);
  return std::make_unique<LocalExperts<T>>(size, arena);
}

#define NANOTRON_INSTANTIATE(T) \
  template std::unique_ptr<ExpertExchange<T>> make_expert_exchange(const ExchangeSize&, comm::Group&, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
