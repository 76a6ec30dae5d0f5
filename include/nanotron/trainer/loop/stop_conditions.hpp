#pragma once

// Reasons to stop before the last step: a signal (base/process.hpp), the wall-time limit or the number of steps of
// the deck, a file named STOP in the run directory.

#include <filesystem>
#include <string>

#include "nanotron/base/log.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/deck/keys/run.hpp"

namespace nanotron::trainer {

enum class StopReason { none = 0, step_limit = 1, stop_file = 2, wall_time = 3, signal = 4 };
std::string describe(StopReason reason);

/// The wall_time_limit of the deck, else the end of the job where the scheduler says it (SLURM_JOB_END_TIME). start:
/// wall_seconds() at the start of the program.
deck::RunConfig with_deadline(deck::RunConfig run, double start, Log& log);

/// What the ranks see after a step.
struct Seen {
  StopReason stop = StopReason::none;
  bool save = false;  // a checkpoint is asked for (save_request.hpp)
};

class StopConditions {
 public:
  /// start: wall_seconds() at the start of the program.
  StopConditions(const deck::RunConfig& run, double start);

  /// The most urgent reason that the ranks see. Collective; the same on every rank. Compares what ranks have
  /// communicated so far (comm::max_and_check_call_order), before any checkpoint. steps_done: since the start of the
  /// program. next_seconds: estimate for the next step and the checkpoint after it, so that both end before the limit.
  /// Rank 0 looks for the STOP file. save: whether this rank sees a request of a checkpoint.
  Seen check(comm::Group& world, std::int64_t steps_done, double next_seconds, bool save = false);
  /// On rank 0: whether there was a STOP file, even if another reason was more urgent, or is one now.
  bool file_was_found();
  /// On rank 0, after the run has ended as the file requests: removed earlier, it would be lost if the run then fails.
  /// A file that is not removed stops the next run.
  void remove_file(Log& log);

 private:
  StopReason seen_here(bool looks_at_files, std::int64_t steps_done, double next_seconds);

  std::filesystem::path stop_file_;
  std::int64_t step_limit_;  // 0: none
  double deadline_;          // 0: none
  bool file_was_found_ = false;
};

}  // namespace nanotron::trainer
