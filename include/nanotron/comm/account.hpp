#pragma once

// What a group's operations cost.

#include <array>
#include <cstdint>

namespace nanotron {
class Timers;
}

namespace nanotron::comm {

/// Traffic of this rank in a group. bytes: given to collectives, and sent in messages. seconds: host time inside the
/// calls (for nccl only to queue them). A nonblocking operation counts as one call.
struct Traffic {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;
  double seconds = 0.0;
};

/// The names under which a group's operations are timed, such as "tp all_reduce"; none where null.
struct OperationNames {
  const char *all_reduce, *all_gather, *reduce_scatter, *broadcast, *all_to_all;
  const char* message;  // between neighbours
  const char* value;    // of values on the host, and barriers
  const char* wait;     // for started operations, and their progress
};

/// The numbers of a group in the flight recorder (base/flight_recorder.hpp); -1: not recorded.
struct RecordedAs {
  int collectives = -1;
  /// Numbers of the lanes of its messages: [receives][to or from the previous rank][lane].
  std::array<std::array<std::array<int, 2>, 2>, 2> messages{{{{{-1, -1}, {-1, -1}}}, {{{-1, -1}, {-1, -1}}}}};
};

class PayloadWatch;  // comm/watch/watched_groups.hpp

/// A group whose data is watched: a unique number, the same on all of its ranks. Null: not watched.
struct WatchedAs {
  PayloadWatch* watch = nullptr;
  std::uint64_t group = 0;
};

/// Where the operations of a group are accounted for.
struct Account {
  Traffic traffic;
  RecordedAs recorded;
  WatchedAs watched;
  Timers* timers = nullptr;  // null: in traffic only
  const OperationNames* names = nullptr;
};

}  // namespace nanotron::comm
