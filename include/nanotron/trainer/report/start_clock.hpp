#pragma once

// Where the time of this start of the program goes: training, checkpoints, and the rest, which comes before and after
// the loop. The ledger of a run (doc/reliability.md) is the sum of these over all its starts.

#include <cstdint>
#include <map>

#include "nanotron/io/metrics/metrics_rows.hpp"

namespace nanotron::trainer {

class StartClock {
 public:
  enum class Kind { rest, training, checkpoint };

  /// begin: wall_seconds() when the program began; the time until now is of the rest.
  explicit StartClock(double begin) : since_(begin) {}

  /// What the time is spent on from now on.
  void enter(Kind kind);
  /// The same until the end of a scope, then as before.
  class Within {
   public:
    Within(StartClock& clock, Kind kind) : clock_(clock), before_(clock.kind_) { clock_.enter(kind); }
    ~Within() { clock_.enter(before_); }
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;

   private:
    StartClock& clock_;
    Kind before_;
  };

  /// The state after `step` is what a checkpoint gets.
  void begin_checkpoint(std::int64_t step) { kept_until_[step] = kept_seconds(); }
  /// Seconds of training before that checkpoint, without those left out; 0 where it is of an earlier start.
  double kept_until(std::int64_t step) const;
  /// Training goes back to the checkpoint of this step: what came after it is left out.
  void go_back(std::int64_t step) { left_out_ += kept_seconds() - kept_until(step); }

  /// Sums so far into a row, and the current time as the last time it was seen running.
  void write(io::StartRow& row);

 private:
  double kept_seconds();

  Kind kind_ = Kind::rest;
  double since_, training_ = 0.0, checkpoint_ = 0.0, left_out_ = 0.0;
  std::map<std::int64_t, double> kept_until_;
};

/// When this program started and, if the scheduler or job script gives it, when its job was submitted
/// (NANOTRON_SUBMIT_TIME) and began to run (NANOTRON_JOB_START_TIME, SLURM_JOB_START_TIME). begin: wall_seconds() then.
io::StartRow start_row(double begin);

}  // namespace nanotron::trainer
