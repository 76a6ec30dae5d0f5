#pragma once

// The report of a rank when nothing progresses: a text file, written without MPI, for people, for judge()
// (hang_verdict.hpp) and for nanotron-report --hang.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nanotron/base/flight_recorder.hpp"

namespace nanotron::trainer {

/// An operation of a rank's ring.
struct ReportedOperation {
  std::string group;
  std::uint64_t sequence = 0;
  std::string name;
  std::uint64_t bytes = 0;
  double begin = 0.0;  // seconds before the report
  double end = -1.0;   // the same; below 0: not complete
  std::int64_t step = 0;
  std::string place;  // "backward, layer 3 mlp"

  bool is_complete() const { return end >= 0.0; }
};

struct ReportedGroup {
  std::vector<int> ranks;  // of the world; empty: not known
  std::uint64_t entered = 0;
  std::uint64_t queued = 0;  // the last operation that the host has queued on a device; 0: none
  /// As in RecordedGroup. judge() compares `alike` between the ranks that report `differs`.
  bool is_compared = false, is_as_before = true;
  std::uint64_t alike = 0;
};

struct RankReport {
  int rank = 0;
  std::string host;
  std::string time;         // by the clock of this host: not comparable between hosts
  bool is_late = false;     // nothing moved for longer than its phase allows
  double idle = 0.0;        // seconds since anything moved
  double allowed = 0.0;     // limit of idle, in seconds
  std::string where;        // "step 12 > backward > layer 3 mlp"
  bool has_failed = false;  // a transfer failed, or operations of ranks differ: it waits for the verdict
  bool differs = false;     // operations of ranks differ, found by take_proof() on all ranks
  std::string network;      // links that this host has lost since the start (network_links.hpp); else empty
  std::string system_call;  // the one on a file in which it is blocked; else empty
  std::string waits_in;     // name of the operation that it waits in; empty: it waits for no rank
  std::string waits_group;
  std::uint64_t waits_sequence = 0;
  double waits_seconds = 0.0;
  std::map<std::string, ReportedGroup> groups;
  std::vector<ReportedOperation> operations;  // from the oldest

  bool waits() const { return !waits_in.empty(); }
};

/// Without rank, host, time, idle, allowed, is_late, has_failed, network and system_call.
RankReport report_of(const FlightSnapshot& snapshot, std::int64_t now);

/// How much of a report is read: the ring is its largest part.
enum class Read { all, without_operations };
std::string to_text(const RankReport& report);
/// Error(data_error) for another format.
RankReport report_from(const std::string& text, Read what);

/// The step, the open regions, and the layer with its part.
std::string where_of(const FlightSnapshot& snapshot);

}  // namespace nanotron::trainer
