#pragma once

// The forward-backward schedule of a step: the micro-batches one after the other through a whole model, or by the
// schedule of a pipeline. What train_step is made of, so that it need not know which.

#include <memory>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/trainer/training_state.hpp"

namespace nanotron::trainer {

/// Collective over the world, but for traffic().
template <class T>
class ForwardBackwardSchedule {
 public:
  virtual ~ForwardBackwardSchedule() = default;

  /// Forward and backward of all micro-batches in the state, whose reducers are told. Loss rows are there on ranks that
  /// have the head; gradients are those of scale * (sum of losses).
  virtual void forward_backward(double scale) = 0;

  /// Forward alone; the loss rows.
  virtual void forward() = 0;

  /// Of reduced gradients: sums those of weights that are head and embedding on different ranks.
  virtual void sum_tied_weights() = 0;

  /// Of one forward_backward(), weights that are gathered for it included.
  virtual comm::StepTraffic traffic() const = 0;
};

/// config is resolved. All must outlive it.
template <class T>
std::unique_ptr<ForwardBackwardSchedule<T>> make_forward_backward(const deck::Config& config, comm::ProcessGrid& grid, Device& device,
                                                          TrainingState<T>& state);

/// For pp > 1.
template <class T>
std::unique_ptr<ForwardBackwardSchedule<T>> make_pipeline_executor(const deck::Config& config, comm::ProcessGrid& grid,
                                                           Device& device, TrainingState<T>& state);

}  // namespace nanotron::trainer
