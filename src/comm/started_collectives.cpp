// Operations of collectives.hpp that are started now and waited for later.

#include <exception>
#include <numeric>
#include <utility>

#include "comm/collective_records.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::comm {
using namespace detail;

Request::~Request() noexcept(false) {
  if (operations_ != nullptr && std::uncaught_exceptions() == 0) wait();
}

Request::Request(Request&& other) noexcept
    : account_(other.account_),
      operations_(std::exchange(other.operations_, nullptr)),
      ticket_(other.ticket_),
      recorded_(other.recorded_),
      watched_(other.watched_) {}

Request& Request::operator=(Request&& other) noexcept {
  if (this != &other) {
    if (operations_ != nullptr) wait();
    account_ = other.account_;
    operations_ = std::exchange(other.operations_, nullptr);
    ticket_ = other.ticket_;
    recorded_ = other.recorded_;
    watched_ = other.watched_;
  }
  return *this;
}

bool Request::test() {
  if (operations_ == nullptr) return true;
  const Clock clock(*account_, &OperationNames::wait);
  if (!operations_->test(ticket_)) return false;
  operations_ = nullptr;
  complete();
  return true;
}

void Request::wait() {
  if (operations_ == nullptr) return;
  const Clock clock(*account_, &OperationNames::wait);
  flight_recorder().wait_for(recorded_, account_->names != nullptr ? account_->names->wait : "wait");
  std::exchange(operations_, nullptr)->wait(ticket_);
  complete();
}

void Request::complete() {
  flight_recorder().end(recorded_);
  tell_arrived(*account_, watched_);
}

template <class T>
Request start_all_reduce(Group& group, T* data, std::size_t n, ReduceOp op, const Stream& stream) {
  if (group.size() == 1 || n == 0) return {};
  const Recorded recorded = record_start(group, "all_reduce", n * sizeof(T),
                                         alike(Call::all_reduce, n * sizeof(T), type_code<T>, detail_of(op)));
  const Clock clock(group, &OperationNames::all_reduce, n * sizeof(T));
  const std::uint64_t watched = give(group, group.account().watched, data, n * sizeof(T));
  return {group.account(), group.channel(), group.channel().start_all_reduce(data, n, data_type<T>, op, stream),
          recorded, watched};
}

template <class T>
Request start_all_gather(Group& group, const T* send, std::size_t n, T* recv, const Stream& stream) {
  if (group.size() == 1 || n == 0) return all_gather(group, send, n, recv, stream), Request();
  const Recorded recorded =
      record_start(group, "all_gather", n * sizeof(T), alike(Call::all_gather, n * sizeof(T), type_code<T>));
  const Clock clock(group, &OperationNames::all_gather, n * sizeof(T));
  const std::uint64_t watched = give(group, group.account().watched, send, n * sizeof(T));
  return {group.account(), group.channel(), group.channel().start_all_gather(send, n, recv, data_type<T>, stream),
          recorded, watched};
}

template <class T>
Request start_reduce_scatter(Group& group, T* send, T* recv, std::size_t n, ReduceOp op, const Stream& stream) {
  if (group.size() == 1 || n == 0) return reduce_scatter(group, send, recv, n, op, stream), Request();
  const std::size_t bytes = n * sizeof(T) * static_cast<std::size_t>(group.size());
  const Recorded recorded =
      record_start(group, "reduce_scatter", bytes, alike(Call::reduce_scatter, bytes, type_code<T>, detail_of(op)));
  const Clock clock(group, &OperationNames::reduce_scatter, bytes);
  const std::uint64_t watched = give(group, group.account().watched, send, bytes);
  return {group.account(), group.channel(),
          group.channel().start_reduce_scatter(send, recv, n, data_type<T>, op, stream), recorded, watched};
}

template <class T>
Request start_all_to_all(Group& group, const T* send, std::size_t n, T* recv, const Stream& stream) {
  if (group.size() == 1) return copy_alone(group, send, recv, n * sizeof(T), stream), Request();
  if (n == 0) return {};
  const std::size_t bytes = n * sizeof(T) * static_cast<std::size_t>(group.size());
  const Recorded recorded = record_start(group, "all_to_all", bytes, alike(Call::all_to_all, bytes, type_code<T>));
  const Clock clock(group, &OperationNames::all_to_all, bytes);
  const std::uint64_t watched = give(group, group.account().watched, send, bytes);
  return {group.account(), group.channel(), group.channel().start_all_to_all(send, n, recv, data_type<T>, stream),
          recorded, watched};
}

template <class T>
Request start_all_to_all(Group& group, const T* send, std::span<const std::size_t> send_counts, T* recv,
                         std::span<const std::size_t> recv_counts, const StreamPoint& after) {
  if (group.size() == 1) return all_to_all(group, send, send_counts, recv, recv_counts, after.stream()), Request();
  const std::size_t bytes = std::accumulate(send_counts.begin(), send_counts.end(), std::size_t{0}) * sizeof(T);
  const Recorded recorded = record_start(group, "all_to_all", bytes, alike(Call::all_to_all, 0, type_code<T>));
  const Clock clock(group, &OperationNames::all_to_all, bytes);
  const std::uint64_t watched = give(group, group.account().watched, send, bytes);
  return {group.account(), group.channel(),
          group.channel().start_all_to_all(send, send_counts, recv, recv_counts, data_type<T>, after), recorded,
          watched};
}

StreamPoint mark(Group& group, const Stream& stream) {
  if (group.size() == 1) return stream;
  return {stream, group.channel().mark(stream)};
}

template <class T>
Request start_send(Group& group, const T* data, std::size_t n, Neighbour to, const Stream& stream, int lane) {
  if (n == 0) return {};
  Messages& messages = group.messages();
  const Recorded recorded = record_message(group, Direction::sends, to, lane, n * sizeof(T));
  const Clock clock(group, &OperationNames::message, n * sizeof(T));
  const std::uint64_t watched = give_message(group, Direction::sends, to, lane, data, n * sizeof(T));
  return {group.account(), messages, messages.start_send(data, n * sizeof(T), to, lane, stream), recorded, watched};
}

template <class T>
Request start_receive(Group& group, T* data, std::size_t n, Neighbour from, const Stream& stream, int lane) {
  if (n == 0) return {};
  Messages& messages = group.messages();
  const Recorded recorded = record_message(group, Direction::receives, from, lane, n * sizeof(T));
  const Clock clock(group.account(), &OperationNames::message);
  const std::uint64_t watched = give_message(group, Direction::receives, from, lane, data, n * sizeof(T));
  return {group.account(), messages, messages.start_receive(data, n * sizeof(T), from, lane, stream), recorded,
          watched};
}

#define NANOTRON_INSTANTIATE(T)                                                                   \
  template Request start_all_reduce<T>(Group&, T*, std::size_t, ReduceOp, const Stream&);         \
  template Request start_all_gather<T>(Group&, const T*, std::size_t, T*, const Stream&);         \
  template Request start_reduce_scatter<T>(Group&, T*, T*, std::size_t, ReduceOp, const Stream&); \
  template Request start_all_to_all<T>(Group&, const T*, std::size_t, T*, const Stream&);         \
  template Request start_all_to_all<T>(Group&, const T*, std::span<const std::size_t>, T*,        \
                                       std::span<const std::size_t>, const StreamPoint&);         \
  template Request start_send<T>(Group&, const T*, std::size_t, Neighbour, const Stream&, int);   \
  template Request start_receive<T>(Group&, T*, std::size_t, Neighbour, const Stream&, int);
NANOTRON_FOR_MESSAGE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::comm
