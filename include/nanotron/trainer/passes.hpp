#pragma once

// How the micro-batches of a step go through the part of the model that a rank has: one after the other through a
// whole model, or by the schedule of a pipeline. What train_step is made of, so that it need not know which.

#include <memory>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/parallel/reducers/gradient_sum.hpp"
#include "nanotron/trainer/training_state.hpp"

namespace nanotron::trainer {

/// Collective over the world, both.
template <class T>
class Passes {
 public:
  virtual ~Passes() = default;

  /// Forward and backward of all micro-batches in the state. Loss rows are there on ranks that have the head;
  /// gradients of scale * (sum of losses) are summed over the replicas.
  virtual void train(double scale) = 0;

  /// Forward alone; the loss rows.
  virtual void evaluate() = 0;
};

/// What passes work with. All must outlive them.
template <class T>
struct PassContext {
  const deck::Config& config;  // resolved
  comm::ProcessGrid& grid;
  Device& device;
  TrainingState<T>& state;
  parallel::GradientSum<T>& gradients;
};

template <class T>
std::unique_ptr<Passes<T>> make_passes(const PassContext<T>& context);

/// For pp > 1. Collective over the pipeline.
template <class T>
std::unique_ptr<Passes<T>> make_pipeline_passes(const PassContext<T>& context);

}  // namespace nanotron::trainer
