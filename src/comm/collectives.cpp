#include "nanotron/comm/collectives.hpp"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/transport/device_transport.hpp"
#include "comm/transport/host_data.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/fp16.hpp"
#include "nanotron/base/timer.hpp"
#include "nanotron/comm/watch/watched_groups.hpp"

namespace nanotron::comm {
namespace {

template <class T>
constexpr DataType data_type = [] {
  if constexpr (std::is_same_v<T, double>) return DataType::fp64;
  if constexpr (std::is_same_v<T, float>) return DataType::fp32;
  if constexpr (std::is_same_v<T, bf16>) return DataType::bf16;
  if constexpr (std::is_same_v<T, fp16>) return DataType::fp16;
  if constexpr (std::is_same_v<T, std::int64_t>) return DataType::int64;
  return DataType::uint64;
}();

// Adds the host seconds of its scope to a group's traffic, and times it as a region.
class Clock {
 public:
  using Name = const char* OperationNames::*;
  Clock(Account& account, Name name) : account_(account), begin_(wall_seconds()) {
    if (account.timers != nullptr) account.timers->start(account.names->*name);
  }
  Clock(Group& group, Name name, std::size_t bytes) : Clock(group.account(), name) {
    ++account_.traffic.calls;
    account_.traffic.bytes += bytes;
  }
  ~Clock() {
    if (account_.timers != nullptr) account_.timers->stop();
    account_.traffic.seconds += wall_seconds() - begin_;
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

 private:
  Account& account_;
  double begin_;
};

using Kind = FlightRecorder::Kind;

// On a device the host only queues it.
Kind kind_of(const Group& group, Kind on_host) { return group.transport() == Transport::nccl ? Kind::queued : on_host; }

// What has to be the same on all ranks of a group: a hash for the flight recorder. detail: reduction or root.
enum class Call : std::uint64_t {
  all_reduce = 1,
  all_gather,
  reduce_scatter,
  broadcast,
  all_to_all,
  message,
  value,
  barrier
};
template <class T>
constexpr auto type_code = 1 + static_cast<std::uint64_t>(data_type<T>);
constexpr std::uint64_t alike(Call call, std::size_t bytes, std::uint64_t type = 0, int detail = 0) {
  const std::uint64_t what = static_cast<std::uint64_t>(call) | type << 8 | static_cast<std::uint64_t>(detail) << 16;
  return (bytes + 1) * 0xD6E8FEB86659FD93ull ^ what * 0xA0761D6478BD642Full;
}
constexpr int detail_of(ReduceOp op) { return static_cast<int>(op); }

// An operation that is complete at the end of its scope, in the flight recorder.
class Recording {
 public:
  Recording(Group& group, const char* name, std::size_t bytes, Call call)
      : Recording(group, name, bytes, Kind::blocking, alike(call, bytes)) {}
  static Recording of_bulk(Group& group, const char* name, std::size_t bytes, std::uint64_t alike) {
    return {group, name, bytes, kind_of(group, Kind::blocking), alike};
  }
  ~Recording() {
    if (kind_ == Kind::blocking) flight_recorder().end(recorded_);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  Recording(Group& group, const char* name, std::size_t bytes, Kind kind, std::uint64_t alike)
      : kind_(kind),
        recorded_(flight_recorder().begin(group.account().recorded.collectives, name, bytes, kind, alike)) {}
  Kind kind_;
  Recorded recorded_;
};

Recorded record_start(Group& group, const char* name, std::size_t bytes, std::uint64_t alike) {
  return flight_recorder().begin(group.account().recorded.collectives, name, bytes, kind_of(group, Kind::started),
                                 alike);
}

enum class Direction { sends, receives };
Recorded record_message(Group& group, Direction direction, Neighbour peer, int lane, std::size_t bytes) {
  const auto& lanes = group.account().recorded.messages[direction == Direction::receives ? 1 : 0];
  const int number = lanes[peer == Neighbour::previous ? 1 : 0][static_cast<std::size_t>(lane)];
  return flight_recorder().begin(number, "message", bytes, kind_of(group, Kind::started), alike(Call::message, bytes));
}

// What this rank gives to a collective, for who watches the group.
std::uint64_t give(const Group& group, const WatchedAs& as, const void* data, std::size_t bytes) {
  if (as.watch == nullptr || group.is_planned()) return 0;
  return as.watch->gives(as.group << 32, data, bytes);
}

// A message, of which `sender` is the rank in the group. With two ranks next and previous are the same one.
std::uint64_t give_message(Group& group, Direction direction, Neighbour peer, int lane, const void* data,
                           std::size_t bytes) {
  const WatchedAs& as = group.account().watched;
  if (as.watch == nullptr || group.is_planned()) return 0;
  const bool sends = direction == Direction::sends, up = (peer == Neighbour::next) == sends;
  const int other = (group.rank() + (peer == Neighbour::next ? 1 : group.size() - 1)) % group.size();
  const auto sender = static_cast<Line>(sends ? group.rank() : other);
  const Line way = 1 + 2 * static_cast<Line>(lane) + (up ? 1 : 0);
  return as.watch->gives(as.group << 32 | sender << 4 | way, data, sends ? bytes : 0);
}

void tell_arrived(const Account& account, std::uint64_t ticket) {
  if (account.watched.watch != nullptr) account.watched.watch->arrived(ticket);
}

// A collective that is complete at the end of its scope.
class Watched {
 public:
  Watched(Group& group, const void* data, std::size_t bytes)
      : account_(group.account()), ticket_(give(group, account_.watched, data, bytes)) {}
  ~Watched() { tell_arrived(account_, ticket_); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  Account& account_;
  std::uint64_t ticket_;
};

// All-gather, reduce-scatter or all-to-all of one rank.
void copy_alone(const Group& group, const void* from, void* to, std::size_t bytes, const Stream& stream) {
  if (from == to || bytes == 0 || group.is_planned()) return;
  if (group.transport() != Transport::mpi) return detail::copy_on_device(from, to, bytes, stream);
  std::memcpy(to, from, bytes);
}

template <class T, class Combine>
T combine_in_rank_order(Group& group, T value, MPI_Datatype type, Combine combine) {
  if (group.size() == 1) return value;
  const Recording recording(group, "host value", sizeof(T), Call::value);
  const Clock clock(group, &OperationNames::value, sizeof(T));
  if (group.is_planned()) return value;
  constexpr int few = 64;
  T kept[few];
  std::vector<T> many(group.size() > few ? static_cast<std::size_t>(group.size()) : 0);
  T* values = group.size() > few ? many.data() : kept;
  NANOTRON_CHECK_TRANSFER(MPI_Allgather(&value, 1, type, values, 1, type, group.mpi()));
  T result = values[0];
  for (int r = 1; r < group.size(); ++r) result = combine(result, values[r]);
  return result;
}

constexpr auto add = [](auto a, auto b) { return a + b; };
constexpr auto larger = [](auto a, auto b) { return std::max(a, b); };
constexpr auto smaller = [](auto a, auto b) { return std::min(a, b); };

}  // namespace

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
void all_reduce(Group& group, T* data, std::size_t n, ReduceOp op, const Stream& stream) {
  if (group.size() == 1 || n == 0) return;
  const Recording recording = Recording::of_bulk(group, "all_reduce", n * sizeof(T),
                                                 alike(Call::all_reduce, n * sizeof(T), type_code<T>, detail_of(op)));
  const Clock clock(group, &OperationNames::all_reduce, n * sizeof(T));
  const Watched watched(group, data, n * sizeof(T));
  group.channel().all_reduce(data, n, data_type<T>, op, stream);
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

template <class T>
void all_gather(Group& group, const T* send, std::size_t n, T* recv, const Stream& stream) {
  if (group.size() == 1) return copy_alone(group, send, recv, n * sizeof(T), stream);
  if (n == 0) return;
  const Recording recording =
      Recording::of_bulk(group, "all_gather", n * sizeof(T), alike(Call::all_gather, n * sizeof(T), type_code<T>));
  const Clock clock(group, &OperationNames::all_gather, n * sizeof(T));
  const Watched watched(group, send, n * sizeof(T));
  group.channel().all_gather(send, n, recv, data_type<T>, stream);
}

template <class T>
void reduce_scatter(Group& group, T* send, T* recv, std::size_t n, ReduceOp op, const Stream& stream) {
  if (group.size() == 1) return copy_alone(group, send, recv, n * sizeof(T), stream);
  if (n == 0) return;
  const std::size_t bytes = n * sizeof(T) * static_cast<std::size_t>(group.size());
  const Recording recording = Recording::of_bulk(group, "reduce_scatter", bytes,
                                                 alike(Call::reduce_scatter, bytes, type_code<T>, detail_of(op)));
  const Clock clock(group, &OperationNames::reduce_scatter, bytes);
  const Watched watched(group, send, bytes);
  group.channel().reduce_scatter(send, recv, n, data_type<T>, op, stream);
}

template <class T>
void broadcast(Group& group, T* data, std::size_t n, int root, const Stream& stream) {
  if (group.size() == 1 || n == 0) return;
  const Recording recording =
      Recording::of_bulk(group, "broadcast", n * sizeof(T), alike(Call::broadcast, n * sizeof(T), type_code<T>, root));
  const Clock clock(group, &OperationNames::broadcast, n * sizeof(T));
  const Watched watched(group, data, group.rank() == root ? n * sizeof(T) : 0);
  group.channel().broadcast(data, n, data_type<T>, root, stream);
}

template <class T>
void all_to_all(Group& group, const T* send, std::span<const std::size_t> send_counts, T* recv,
                std::span<const std::size_t> recv_counts, const Stream& stream) {
  if (group.size() == 1) return copy_alone(group, send, recv, send_counts[0] * sizeof(T), stream);
  const std::size_t n = std::accumulate(send_counts.begin(), send_counts.end(), std::size_t{0});
  const Recording recording =
      Recording::of_bulk(group, "all_to_all", n * sizeof(T), alike(Call::all_to_all, 0, type_code<T>));
  const Clock clock(group, &OperationNames::all_to_all, n * sizeof(T));
  const Watched watched(group, send, n * sizeof(T));
  group.channel().all_to_all(send, send_counts, recv, recv_counts, data_type<T>, stream);
}

void barrier(Group& group) {
  if (group.size() == 1) return;
  const Recording recording(group, "barrier", 0, Call::barrier);
  const Clock clock(group, &OperationNames::value, 0);
  NANOTRON_CHECK_TRANSFER(MPI_Barrier(group.mpi()));
}

double sum(Group& group, double value) { return combine_in_rank_order(group, value, MPI_DOUBLE, add); }
double max(Group& group, double value) { return combine_in_rank_order(group, value, MPI_DOUBLE, larger); }
double min(Group& group, double value) { return combine_in_rank_order(group, value, MPI_DOUBLE, smaller); }
std::int64_t sum(Group& group, std::int64_t value) { return combine_in_rank_order(group, value, MPI_INT64_T, add); }
std::uint64_t sum(Group& group, std::uint64_t value) { return combine_in_rank_order(group, value, MPI_UINT64_T, add); }
std::int64_t max(Group& group, std::int64_t value) { return combine_in_rank_order(group, value, MPI_INT64_T, larger); }
std::int64_t min(Group& group, std::int64_t value) { return combine_in_rank_order(group, value, MPI_INT64_T, smaller); }

std::int64_t max_and_check_call_order(Group& world, std::int64_t value) {
  if (world.size() == 1) return value;
  constexpr int bits = 4;  // of the value
  constexpr std::uint64_t mask = (1U << bits) - 1;
  NANOTRON_REQUIRE(value >= 0 && value <= static_cast<std::int64_t>(mask), "a value of {}", value);
  // In the upper bits a weighted sum of the hashes of operations, modulo 2^60: 0 where all ranks of all groups agree.
  const std::uint64_t mine = flight_recorder().take_proof() << bits | static_cast<std::uint64_t>(value);
  const std::uint64_t all = combine_in_rank_order(world, mine, MPI_UINT64_T, [](std::uint64_t a, std::uint64_t b) {
    return ((a >> bits) + (b >> bits)) << bits | std::max(a & mask, b & mask);
  });
  if (all >> bits != 0) flight_recorder().wait_for_verdict(FlightRecorder::Found::by_proof);
  return static_cast<std::int64_t>(all);
}

#define NANOTRON_INSTANTIATE(T)                                                                                 \
  template void all_reduce<T>(Group&, T*, std::size_t, ReduceOp, const Stream&);                                \
  template Request start_all_reduce<T>(Group&, T*, std::size_t, ReduceOp, const Stream&);                       \
  template Request start_all_gather<T>(Group&, const T*, std::size_t, T*, const Stream&);                       \
  template Request start_reduce_scatter<T>(Group&, T*, T*, std::size_t, ReduceOp, const Stream&);               \
  template Request start_all_to_all<T>(Group&, const T*, std::size_t, T*, const Stream&);                       \
  template Request start_send<T>(Group&, const T*, std::size_t, Neighbour, const Stream&, int);                 \
  template Request start_receive<T>(Group&, T*, std::size_t, Neighbour, const Stream&, int);                    \
  template void all_gather<T>(Group&, const T*, std::size_t, T*, const Stream&);                                \
  template void reduce_scatter<T>(Group&, T*, T*, std::size_t, ReduceOp, const Stream&);                        \
  template void broadcast<T>(Group&, T*, std::size_t, int, const Stream&);                                      \
  template void all_to_all<T>(Group&, const T*, std::span<const std::size_t>, T*, std::span<const std::size_t>, \
                              const Stream&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
NANOTRON_INSTANTIATE(fp16)
NANOTRON_INSTANTIATE(std::int64_t)
NANOTRON_INSTANTIATE(std::uint64_t)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::comm
