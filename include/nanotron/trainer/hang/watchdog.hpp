#pragma once

// Ends a run without progress, and names the late rank.
//
// Each rank watches its own flight recorder. A rank that is late writes a report into <output_dir>/hang. The first such
// rank leads: while its file `leader` exists, ranks whose step takes long report too. Once the reports show who is
// late (hang_verdict.hpp) the leader writes verdict.txt, and every rank that sees it exits with 71. If the run
// continues, ranks remove their reports. Only files are used, and none before a rank is late: MPI may be stuck.

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/comm/host_map.hpp"

namespace nanotron::trainer {

struct WatchdogSetup {
  std::filesystem::path output_dir;
  double timeout = 0.0;  // run%hang_timeout, s
  int rank = 0;
  comm::HostMap hosts;
  std::filesystem::path status{};  // of io::RunStatus; may be empty
};

/// Number of limits that may pass without progress: 3 before the first step is done, in a checkpoint, in validation,
/// and while tokens are read or metrics written; else 1.
double allowance(const FlightSnapshot& snapshot, std::int64_t steps_done);

/// Seconds: the larger of the timeout and ten times the longest step (the first one of a start does not count).
double hang_limit(double timeout, const FlightSnapshot& snapshot);

/// Seconds without progress until a rank checks whether another one has failed: 5, or three steps if that is more.
double quiet_limit(const FlightSnapshot& snapshot);

/// Renames hang/ of an earlier run to hang.old/. On one rank, before any other has a watchdog.
void remove_old_hang_reports(const std::filesystem::path& output_dir);

class HangCase;  // what a rank does about a hang

/// Watches the thread that makes it, and turns the recorder on. Time in which the whole process was stopped does not
/// count, so that a job may be suspended and continued. Threads of its own: one counts, one reads and writes files; if
/// that one is blocked by its file system for a minute, the first ends this rank. No call of MPI but MPI_Abort.
class Watchdog {
 public:
  explicit Watchdog(WatchdogSetup setup);
  /// No verdict after this. All ranks end together: otherwise one that has ended would be reported as silent.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void count();
  void attend();
  void wait_for_tick();
  bool is_ending() const { return ending_.load(std::memory_order_acquire); }

  double timeout_, tick_;  // seconds
  int rank_;
  std::atomic<bool> ending_{false};
  std::atomic<double> idle_{0.0}, allowed_, step_idle_{0.0};
  std::atomic<double> quiet_after_{0.0};
  std::atomic<std::uint64_t> rounds_{0};  // of the second thread
  std::mutex mutex_;
  std::condition_variable ended_;
  std::unique_ptr<HangCase> case_;
  std::thread counter_, attendant_;
};

}  // namespace nanotron::trainer
