#pragma once

// The largest attention score of each layer and query head of the model, over the pairs of a query and a key in a step
// that attend to each other: S = scale q . k, after norms, biases and rotation and before the softmax. Sinks do not
// count.

#include "nanotron/comm/group.hpp"
#include "nanotron/comm/watch/step_traffic.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/kernels/attention/score_map.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::nn {

class ScoreMaxima {
 public:
  /// None: nobody asks for them.
  ScoreMaxima() = default;
  /// Those that optimizer%qk_clip asks for. The groups have the ranks with other tokens and those with other heads, and
  /// must outlive it.
  ScoreMaxima(const deck::Config& config, comm::Group& data_parallel, comm::Group& tp, Arena& arena);

  /// What backward raises in a layer of the model, by its number.
  kernels::ScoreMaxima of_layer(index_t number) const;
  /// of_step() <- the maxima since the last call, over both groups; those of layers and heads elsewhere are the lowest
  /// finite number. Collective over the groups.
  void take(Device& device) const;
  /// (layers, query heads); empty: none.
  const Matrix<double>& of_step() const { return of_step_; }
  /// Of one take.
  comm::StepTraffic traffic() const;

 private:
  comm::Group *data_parallel_ = nullptr, *tp_ = nullptr;
  Matrix<double> running_{}, of_step_{};
};

}  // namespace nanotron::nn
