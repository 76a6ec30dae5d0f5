#pragma once

// The training loop.

#include <vector>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/optim/lr_schedule.hpp"
#include "nanotron/trainer/checkpoint/checkpoint_times.hpp"
#include "nanotron/trainer/checkpoint/checkpointing.hpp"
#include "nanotron/trainer/data/loaders.hpp"
#include "nanotron/trainer/faults/faults.hpp"
#include "nanotron/trainer/loop/save_request.hpp"
#include "nanotron/trainer/loop/stop_conditions.hpp"
#include "nanotron/trainer/preference/references.hpp"
#include "nanotron/trainer/report/progress.hpp"
#include "nanotron/trainer/state/forward_backward.hpp"
#include "nanotron/trainer/state/token_buffer.hpp"

namespace nanotron::trainer {

/// Every function is collective over the world of the grid.
template <class T>
class Trainer {
 public:
  using M = master_t<T>;

  /// config is resolved; provenance goes into the checkpoints; all references must outlive the trainer.
  /// Weights start from run%seed. copies: null where the run has none.
  Trainer(const deck::Config& config, const Provenance& provenance, comm::ProcessGrid& grid, Device& device,
          Arena& arena, Loaders& loaders, Log& log, io::NeighbourCopies* copies = nullptr);

  /// Continues from `checkpoint`, or from what checkpoint%resume names, if there is one.
  void resume(std::optional<io::CheckpointReader> checkpoint = {});

  /// Trains until step `until` (0: run%steps) or a reason to stop, with validation, checkpoints and progress reports.
  /// If it ends at a step before run%steps, that step is in a checkpoint.
  StopReason run(StopConditions& stop, Progress& progress, std::int64_t until = 0);

  /// Forward, backward, gradient reduction, clipping and update of the next step; for a bad one, what run%on_bad_step
  /// says (step_guard.hpp). StepResult::rolled_back: step() is then that of the checkpoint.
  StepResult train_step();

  /// For each validation set the mean loss over all targets of its samples (data/batch_loader.hpp).
  std::vector<double> validate();

  /// Compares what several ranks hold (ReplicaComparison), then writes a checkpoint.
  SavedCheckpoint save();

  std::int64_t step() const { return counters_.step; }
  std::int64_t tokens_seen() const { return counters_.tokens_seen; }
  index_t sample_cursor() const { return counters_.sample_cursor; }
  /// The state, after all communication of weights has finished. Collective.
  TrainingState<T>& state();
  /// Of the statistics of all its steps. Collective.
  std::string summary() { return statistics_->summary(); }
  double exposed_communication_seconds() const { return state_.reducers.exposed_seconds(); }

 private:
  // A step by the clock.
  struct StepStart {
    double begin, waited;            // seconds; waited: for a checkpoint, so far
    bool beside_checkpoint = false;  // a checkpoint is being written
  };
  void load(data::BatchLoader& loader, index_t first_sample);
  void read_ahead();
  void queue_update(double learning_rate);
  void update_curvature();
  void read_result(StepResult& result);
  void count_update(const StepResult& result);
  void handle_bad_step(StepResult& result);
  void count_bad_step(const StepResult& result, std::int64_t bad, const std::string& since);
  bool roll_back(StepResult& result);
  std::optional<io::CheckpointReader> newest_to_go_back_to() const;
  void save_now(Progress& progress, StopReason reason);
  void copy_now(Progress& progress);
  void poll_async_checkpoint(Progress& progress);
  void finish_writing(Progress& progress);
  void record_saved(Progress& progress, const std::optional<SavedCheckpoint>& saved);
  void record_step(Progress& progress, const StepStart& start, const StepResult& result);
  void record_validation(Progress& progress);
  void save_and_copy(Progress& progress, const Seen& seen);
  double seconds_to_safety(const Progress& progress) const;
  bool validation_is_due(std::int64_t step) const;
  double validation_estimate(const Progress& progress) const;  // seconds

  const deck::Config& config_;
  comm::ProcessGrid& grid_;
  Device& device_;
  Loaders& loaders_;
  Log& log_;
  TrainingState<T> state_;
  std::unique_ptr<ForwardBackwardSchedule<T>> schedule_;
  std::unique_ptr<StatisticsMonitor> statistics_;
  Faults<T> faults_;
  CheckpointTimes checkpoint_times_;
  optim::LrSchedule learning_rate_;
  Checkpointing<T> checkpointing_;
  SaveRequest save_request_;
  io::CheckpointState counters_;
  std::int64_t end_;  // step
  std::int64_t skipped_in_a_row_ = 0;
  std::int64_t rolled_back_ = 0, rolled_back_to_ = 0;  // times in a row to the checkpoint of one step; that step
  std::int64_t saved_at_ = 0;                          // step of the last checkpoint of run(), or where it began
  double validation_seconds_ = 0.0;                    // of the last validation; 0: not measured yet
  double save_seconds_ = 0.0;                // of the last checkpoint, in this start or before; 0: not measured yet
  double copy_seconds_ = 0.0;                // the same of copies on other hosts
  std::optional<SavedCheckpoint> finished_;  // while a bad step was answered
  LoadedBatch loaded_;
  TokenBuffer tokens_;
  References<T> references_;
};

}  // namespace nanotron::trainer
