#pragma once

// What every collective and message tells: its type, time, record and watch. Private to the comm layer.
#include <cstring>

#include "comm/transport/device_transport.hpp"
#include "nanotron/base/fp16.hpp"
#include "nanotron/base/timer.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/transport/channel.hpp"
#include "nanotron/comm/watch/watched_groups.hpp"

// Types of the elements that collectives and messages take.
#define NANOTRON_FOR_MESSAGE_TYPES(macro) \
  NANOTRON_FOR_COMPUTE_TYPES(macro) macro(fp16) macro(std::int64_t) macro(std::uint64_t)

namespace nanotron::comm::detail {

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
inline Kind kind_of(const Group& group, Kind on_host) {
  return group.transport() == Transport::nccl ? Kind::queued : on_host;
}

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

inline Recorded record_start(Group& group, const char* name, std::size_t bytes, std::uint64_t alike) {
  return flight_recorder().begin(group.account().recorded.collectives, name, bytes, kind_of(group, Kind::started),
                                 alike);
}

enum class Direction { sends, receives };
inline Recorded record_message(Group& group, Direction direction, Neighbour peer, int lane, std::size_t bytes) {
  const auto& lanes = group.account().recorded.messages[direction == Direction::receives ? 1 : 0];
  const int number = lanes[peer == Neighbour::previous ? 1 : 0][static_cast<std::size_t>(lane)];
  return flight_recorder().begin(number, "message", bytes, kind_of(group, Kind::started), alike(Call::message, bytes));
}

// What this rank gives to a collective, for who watches the group.
inline std::uint64_t give(const Group& group, const WatchedAs& as, const void* data, std::size_t bytes) {
  if (as.watch == nullptr || group.is_planned()) return 0;
  return as.watch->gives(as.group << 32, data, bytes);
}

// A message, of which `sender` is the rank in the group. With two ranks next and previous are the same one.
inline std::uint64_t give_message(Group& group, Direction direction, Neighbour peer, int lane, const void* data,
                                  std::size_t bytes) {
  const WatchedAs& as = group.account().watched;
  if (as.watch == nullptr || group.is_planned()) return 0;
  const bool sends = direction == Direction::sends, up = (peer == Neighbour::next) == sends;
  const int other = (group.rank() + (peer == Neighbour::next ? 1 : group.size() - 1)) % group.size();
  const auto sender = static_cast<Line>(sends ? group.rank() : other);
  const Line way = 1 + 2 * static_cast<Line>(lane) + (up ? 1 : 0);
  return as.watch->gives(as.group << 32 | sender << 4 | way, data, sends ? bytes : 0);
}

inline void tell_arrived(const Account& account, std::uint64_t ticket) {
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

// Of one rank.
inline void copy_alone(const Group& group, const void* from, void* to, std::size_t bytes, const Stream& stream) {
  if (from == to || bytes == 0 || group.is_planned()) return;
  if (group.transport() != Transport::mpi) return copy_on_device(from, to, bytes, stream);
  std::memcpy(to, from, bytes);
}

}  // namespace nanotron::comm::detail
