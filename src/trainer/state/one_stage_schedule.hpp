#pragma once

// What schedules without a pipeline have in common. model::Slot{} is the only virtual stage, whose activations the
// micro-batches use in turn.

#include <algorithm>
#include <iterator>
#include <vector>

#include "nanotron/trainer/state/forward_backward.hpp"

namespace nanotron::trainer {

template <class T>
class OneStageSchedule : public ForwardBackwardSchedule<T> {
 public:
  void compute_once() override {}
  void compute_once_forward() override {}
  void all_reduce_tied_gradients() override {}

  comm::StepTraffic traffic() const override {
    const model::LayerTraffic all = model_.traffic(0);
    std::vector<model::SourceUse> uses;
    for (index_t m = 0; m < state_.micro_batches(); m += together_) {
      std::ranges::copy(model_.forward_uses(0), std::back_inserter(uses));
      std::ranges::copy(model_.backward_uses(0), std::back_inserter(uses));
    }
    return state_.micro_batches() * (all.forward + all.backward) + model_.weights().traffic(uses);
  }

 protected:
  /// together: micro-batches that use the weights of a layer one after another.
  OneStageSchedule(TrainingState<T>& state, index_t together)
      : state_(state), model_(state.model), reducers_(state.reducers), together_(together) {}

  TrainingState<T>& state_;
  model::Transformer<T>& model_;
  parallel::Reducers<T>& reducers_;

 private:
  index_t together_;
};

}  // namespace nanotron::trainer
