#pragma once

// The forward-backward schedule of a step: micro-batches one after another through the whole model, or by a pipeline
// schedule. Trainer::train_step works with either.

#include <memory>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/data/batch_loader.hpp"
#include "nanotron/trainer/state/token_buffer.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {

/// All functions but traffic() are collective over the world.
template <class T>
class ForwardBackwardSchedule {
 public:
  virtual ~ForwardBackwardSchedule() = default;

  /// Forward and backward of all micro-batches in the state; calls begin() and end() of the reducers. Overwrites the
  /// loss rows on ranks that have the head. The gradients are those of scale * (sum of losses).
  virtual void forward_backward(double scale) = 0;

  /// Forward only. Overwrites the loss rows on ranks that have the head.
  virtual void forward() = 0;

  /// Call them before the first forward_backward() and the first forward(): on a GPU with pp > 1 they compute once what
  /// these do, see parallel::Pipeline::compute_once. Overwritten: tokens, loss rows, activations, gradients. Added to:
  /// the statistics of routers.
  virtual void compute_once() = 0;
  virtual void compute_once_forward() = 0;

  /// After the gradient reduction: all-reduces the gradient of tied embedding and LM head over the pipeline ranks that
  /// hold them.
  virtual void all_reduce_tied_gradients() = 0;

  /// Communication of one forward_backward(), including the all-gathers of sharded weights.
  virtual comm::StepTraffic traffic() const = 0;
};

/// config is resolved. All arguments must outlive the result.
template <class T>
std::unique_ptr<ForwardBackwardSchedule<T>> make_forward_backward(const deck::Config& config, comm::ProcessGrid& grid,
                                                                  Device& device, TrainingState<T>& state);

/// For micro-batches of two parts, without a pipeline.
template <class T>
std::unique_ptr<ForwardBackwardSchedule<T>> make_halves_schedule(TrainingState<T>& state);

/// For pp > 1.
template <class T>
std::unique_ptr<ForwardBackwardSchedule<T>> make_pipeline_executor(const deck::Config& config, comm::ProcessGrid& grid,
                                                                   Device& device, TrainingState<T>& state);

struct MeanLoss {
  double loss = 0.0;  // nats per token; NaN without a target
  index_t targets = 0;
};

/// Forward of all samples of a loader of validation data. Collective over the world; overwrites the tokens of the
/// state.
template <class T>
MeanLoss mean_loss(Device& device, comm::ProcessGrid& grid, TrainingState<T>& state,
                   ForwardBackwardSchedule<T>& schedule, TokenBuffer& tokens, data::BatchLoader& loader,
                   index_t global_batch_size);

}  // namespace nanotron::trainer
