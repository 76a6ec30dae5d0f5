#pragma once

// The result of a training step.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/io/metrics/metrics_rows.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::trainer {

/// Statistics of a step that some runs report besides the loss, over all ranks: columns, and the end of the step's log
/// line with these values.
std::vector<io::ExtraColumn> statistics_columns(const deck::Config& config);
std::string statistics_text(const deck::Config& config, const io::ExtraValues& values);

class StatisticsMonitor {
 public:
  virtual ~StatisticsMonitor() = default;
  /// Queues the copy to the host of the statistics since the last call. rows: tokens of this rank in the step.
  /// Collective over the world, as is collect.
  virtual void start(index_t rows) = 0;
  /// values: of the columns, from what was copied, after a wait for the device; the same on all ranks. terms: of the
  /// mean loss of the global batch.
  virtual void collect(double terms, std::span<double> values) = 0;
  /// After an update of the weights: queues what the model derives from the statistics collected last.
  virtual void after_update() {}
  /// Of all steps so far, for the end of a run; empty if there is none. Collective over the world.
  virtual std::string summary() { return {}; }
};

template <class T>
struct TrainingState;  // trainer/state/training_state.hpp

/// Of all statistics of the run. config is resolved. start sets the model's statistics to zero. On a planning device
/// start and after_update count their kernels and communication. The arguments must outlive it.
template <class T>
std::unique_ptr<StatisticsMonitor> make_statistics_monitor(const deck::Config& config, comm::ProcessGrid& grid,
                                                           Device& device, const TrainingState<T>& state);

struct StepResult {
  index_t samples = 0;     // of the global batch
  double loss = 0.0;       // mean over the target tokens of the global batch
  double grad_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  std::uint64_t token_hash = 0;
  io::ExtraValues statistics{};  // of statistics_columns
  bool updated = true;           // false: a bad step (step_guard.hpp), which changed nothing
  bool rolled_back = false;      // and training went back to a checkpoint
  std::int64_t step = 0;
  index_t first_sample = 0;       // of the global batch
  index_t left_out_from = 0;      // after a roll back: the first sample that training leaves out; else first_sample
  std::string first_nonfinite{};  // of a bad step whose numbers are not finite (first_nonfinite.hpp)
};

}  // namespace nanotron::trainer
