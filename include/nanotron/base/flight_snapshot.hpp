#pragma once

// The state of a rank, as recorded by its flight recorder (flight_recorder.hpp).

#include <cstdint>
#include <string>
#include <vector>

namespace nanotron {

/// Ranks of the world that do the same operations in the same order: a group, or the two ends of a lane of messages.
/// Its name is unique and the same on each of them.
struct RecordedGroup {
  std::string name;        // "tp group 3"
  std::vector<int> ranks;  // empty: not known
  std::uint64_t entered = 0;
  /// If its ranks are compared: `alike` is a hash of the compared operations entered so far, the same on each rank if
  /// they agree; `is_as_before`: those of the last compared step have the same hash as those of the step before.
  bool is_compared = false, is_as_before = true;
  std::uint64_t alike = 0;

  bool is_same_as(const RecordedGroup& other) const { return name == other.name && ranks == other.ranks; }
};

/// Where in a step something happens. Names are string literals; null: nowhere.
struct StepLocation {
  std::int64_t step = 0;        // that is being computed; 0: none yet
  const char* phase = nullptr;  // the innermost region
  const char* part = nullptr;   // "attention", "mlp"
  std::int32_t layer = -1;      // of the model
};

struct OperationRecord {
  int group = 0;
  std::uint64_t sequence = 0;  // in its group, from 1
  const char* name = nullptr;
  std::uint64_t bytes = 0;
  StepLocation place;
  std::int64_t begin = 0, end = 0;  // ns of the monotonic clock; end = 0: not complete; queued: on a device
  static constexpr std::int64_t queued = -1;
};

/// An operation that has begun; sequence = 0: none.
struct Recorded {
  int group = 0;
  std::uint64_t sequence = 0, index = 0;
};

struct FlightSnapshot {
  std::vector<RecordedGroup> groups;
  std::vector<const char*> regions;  // from the outermost
  StepLocation place;
  std::int64_t longest_step = 0;  // ns, without the first
  Recorded waits_for;             // group 0: its ranks are not known
  std::int64_t waits_since = 0;
  const char* waits_in = nullptr;        // the name of that operation
  std::vector<OperationRecord> records;  // from the oldest
  bool differs = false;                  // the sum of take_proof() over the ranks was not 0
};

}  // namespace nanotron
