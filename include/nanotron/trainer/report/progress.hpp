#pragma once

// What a run reports while it trains: lines on the console and in run.log, and metrics.h5.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/base/timer.hpp"
#include "nanotron/data/order/batch_ramp.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"
#include "nanotron/io/files/run_status.hpp"
#include "nanotron/io/metrics/metrics_file.hpp"
#include "nanotron/trainer/report/saved_checkpoint.hpp"
#include "nanotron/trainer/report/start_clock.hpp"
#include "nanotron/trainer/state/step_result.hpp"

namespace nanotron::trainer {

/// Cost of a step of global_batch_size, and the FLOP/s of all ranks together that its speed is compared with.
struct StepCost {
  double tokens = 0.0;
  double flops = 0.0;        // of a step, see model/cost.hpp
  double gemm_peak = 0.0;    // measured
  double stated_peak = 0.0;  // of the devices; 0: not known
};

/// What comes after the present stage of a run (trainer/data/training_stages.hpp).
struct LaterStages {
  std::int64_t from_step = 0;  // 0: none
  double flops = 0.0;
};

// If metrics cannot be written (a full disk), the run warns once and continues without them.
class Progress {
 public:
  /// metrics is null on ranks that do not write. begin: wall_seconds() when the program began.
  Progress(const deck::Config& config, const StepCost& cost, std::unique_ptr<io::MetricsFile> metrics,
           io::RunStatus& status, Log& log, double begin = wall_seconds());
  /// If it is destroyed during stack unwinding, the start has failed.
  ~Progress();

  /// From here on the steps belong to this stage of the run. The measured speed is scaled by their FLOPs.
  void enter(const deck::Config& stage, const StepCost& cost, const LaterStages& later);

  /// Call it after the step that brought the run to `now` and took `seconds`.
  void record(const io::CheckpointState& now, double seconds, const StepResult& result);
  /// Call it after a step without an update, before its record(). `now`: the counters with which training continues;
  /// metrics of later steps are dropped if it went back.
  void record_bad_step(const io::CheckpointState& now, const StepResult& result);
  /// Losses of the deck's validation sets, in its order.
  void record_validation(std::int64_t step, std::span<const double> losses);
  void record_checkpoint(const SavedCheckpoint& saved);
  /// A copy on other hosts: a run can resume from it as from a checkpoint.
  void record_copy(const SavedCheckpoint& copied, const std::filesystem::path& where);
  /// Steps since the start of the program.
  std::int64_t steps() const { return steps_; }
  /// Seconds of a step like the next one, by a moving average of the latest; 0 before the first.
  double recent_seconds() const { return recent_seconds_; }
  /// The same of a step of global_batch_size.
  double full_seconds() const { return full_seconds_; }
  /// The last losses, for the last line of a run: "loss 2.0850, validation loss 2.1857"; empty without a step.
  std::string summary() const;
  /// What a checkpoint took, also in an earlier start of the job; 0: not known.
  double checkpoint_seconds() const { return status_.checkpoint_seconds(); }
  void flush();

  /// Where the time goes, for the ledger.
  StartClock& clock() { return clock_; }
  void end(io::StartEnd how);

 private:
  void write_start(std::int64_t step);
  template <class Work>
  void with_metrics(const Work& work);

  const deck::Config* config_;
  StepCost cost_;
  LaterStages later_{};
  std::vector<std::string> validation_sets_;  // names; empty: one set without a name
  std::unique_ptr<io::MetricsFile> metrics_;  // also null after a failed write
  io::RunStatus& status_;
  Log& log_;
  data::BatchRamp ramp_;
  StartClock clock_;
  io::StartRow start_;
  int exceptions_;               // in flight when this was made
  double full_seconds_ = 0.0;    // of a step of global_batch_size, moving average of the latest
  double recent_seconds_ = 0.0;  // of the next step
  std::int64_t steps_ = 0;       // recorded
  bool is_first_ = true;         // the next step, of its stage
  double loss_ = 0.0;            // the last
  std::string validation_loss_;  // of the last validation, as text; empty before
};

}  // namespace nanotron::trainer
