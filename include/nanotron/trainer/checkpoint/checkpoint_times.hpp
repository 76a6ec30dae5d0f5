#pragma once

// When the next checkpoint is due: after checkpoint%every_steps steps or checkpoint%every_minutes, whichever comes
// first; with checkpoint%node_mtbf after T seconds, the interval that loses least time (Daly 2006, eq. 37; the first
// term is Young's, 1974):
//
//   T = sqrt(2 d M) (1 + sqrt(d / (2 M)) / 3 + d / (2 M) / 9) - d    for d < 2 M, else M
//
//   d: seconds that the last checkpoint cost training: what it waited for it and for the comparison of replicas before,
//      and what the steps beside an asynchronous one took longer than others; 30 before the first
//   M: seconds between failures of the job, the days of node_mtbf over its nodes
//
// J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006).

#include <cstdint>
#include <string>

#include "nanotron/base/log.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/comm/group.hpp"
#include "nanotron/deck/keys/checkpoint.hpp"
#include "nanotron/trainer/report/saved_checkpoint.hpp"

namespace nanotron::trainer {

/// T above, in seconds; cost, between_failures > 0.
double best_interval(double cost, double between_failures);

/// A warning if the deck has no checkpoint before the end of the run and no copies; else empty.
std::string unsaved_text(const deck::CheckpointConfig& config);

class CheckpointTimes {
 public:
  /// nodes: of the run. The time begins now.
  CheckpointTimes(const deck::CheckpointConfig& config, int nodes, Log& log);

  /// Call it after each step. Equal on all ranks: rank 0's clock decides. Collective over `world` if time matters.
  bool is_due(comm::Group& world, std::int64_t step);

  /// A checkpoint begins: restarts the interval.
  void begin();
  /// Seconds that the checkpoint under way costs beside SavedCheckpoint::waited.
  void add_cost(double seconds) { cost_ += seconds; }
  /// A step with `samples` samples; seconds without waiting for a checkpoint. beside: one was being written.
  void record_step(double seconds, index_t samples, bool beside);
  /// The checkpoint under way is not recorded.
  void drop();
  /// A checkpoint is on disk. With node_mtbf the log reports the next interval if it has changed by a tenth.
  void record(const SavedCheckpoint& saved);

 private:
  std::int64_t every_steps_;
  double seconds_;                    // from one to the next; 0: time does not matter
  double between_failures_;           // of the job; 0: not given
  double since_;                      // wall_seconds()
  double cost_ = 0.0, slower_ = 0.0;  // of the checkpoint under way, so far; of the steps beside it
  double plain_seconds_ = 0.0;        // of a sample where nothing is written beside, moving average
  std::int64_t plain_steps_ = 0;
  double told_ = 0.0;  // the interval in the log
  Log& log_;
};

}  // namespace nanotron::trainer
