#pragma once

// What a run tells while it trains: the line on the console and in run.log, and metrics.h5.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/io/metrics_file.hpp"
#include "nanotron/trainer/router_monitor.hpp"

namespace nanotron::trainer {

struct StepResult {
  double loss = 0.0;       // mean over the target tokens of the global batch
  double grad_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  std::uint64_t token_hash = 0;
  RouterNumbers router{};
  bool updated = true;  // false: the numbers were not finite and the update was left out
};

/// What speeds are measured against.
struct StepCost {
  double tokens = 0.0;        // of a global batch
  double flops = 0.0;         // of a step, see model/cost.hpp
  double machine_rate = 0.0;  // operations per second of all ranks' matrix products together
};

// Metrics are not worth a run: when they cannot be written (a full disk), one warning says so and the run
// goes on without.
class Progress {
 public:
  /// metrics is null on the ranks that do not speak.
  Progress(const deck::Config& config, const StepCost& cost, std::unique_ptr<io::MetricsFile> metrics,
           Log& log);

  /// Behind update number `step` (from 1), which took `seconds`.
  void record(std::int64_t step, std::int64_t tokens_seen, double seconds, const StepResult& result);
  /// Losses of the deck's validation sets, in its order.
  void record_validation(std::int64_t step, std::span<const double> losses);
  /// Seconds of a step, averaged over the latest ones; 0 before the first.
  double recent_seconds() const { return recent_seconds_; }
  /// The last losses, for the last line of a run: "loss 2.0850, validation loss 2.1857"; empty without a step.
  std::string summary() const;
  void flush();

 private:
  template <class Work>
  void with_metrics(const Work& work);

  const deck::Config& config_;
  StepCost cost_;
  std::vector<std::string> validation_sets_;  // names; empty: one set without a name
  std::unique_ptr<io::MetricsFile> metrics_;  // null as well once writing failed
  Log& log_;
  double recent_seconds_ = 0.0;
  std::int64_t steps_ = 0;  // recorded
  double loss_ = 0.0;       // the last
  std::string validation_loss_;  // of the last validation, as text; empty before
};

}  // namespace nanotron::trainer
