#pragma once

// What a rank holds to train: the model with its memory, the optimizer, and one micro-batch of tokens.
// Constructed with a planning arena it is the memory plan, with a real one the run.

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/model/transformer.hpp"
#include "nanotron/optim/adamw.hpp"

namespace nanotron::trainer {

/// Sizes follow from the resolved deck and the place in the grid.
struct GridPlace {
  comm::GridShape shape;
  comm::GridCoordinate at;
};

template <class T>
struct TrainingState {
  using M = master_t<T>;

  TrainingState(const deck::Config& config, const GridPlace& place, comm::Group& tp, Device& device,
                Arena& arena);

  model::Transformer<T> model;
  optim::Adamw<M> optimizer;
  Vector<std::int32_t> inputs;   // of the micro-batch at work; (sequences x length)
  Vector<std::int32_t> targets;
  Vector<double> loss_rows;      // of this rank's tokens of the step, in sample order
};

/// Target tokens of a global batch.
inline index_t tokens_per_step(const deck::Config& config) {
  return config.data.global_batch_size * config.data.sequence_length;
}

/// What rank `place` of the grid will take. One process can plan for any grid; config is resolved.
MemoryPlan plan_memory(const deck::Config& config, const GridPlace& place, comm::Group& any_group);

}  // namespace nanotron::trainer
