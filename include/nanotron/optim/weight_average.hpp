#pragma once

// Exponential moving average of the weights that training updates (optimizer%ema_decay), beside any optimizer. It
// begins with the initial weights, or with those of a checkpoint that has no average.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "nanotron/deck/keys/optimizer.hpp"
#include "nanotron/optim/optimizer.hpp"

namespace nanotron::optim {

/// average += (1 - decay) (p - average), PyTorch's lerp, of (n) each, if scalars (1) allow the update of p, whose
/// kernels come before this one. M is double or float.
template <class M>
void update_average(Device& device, Vector<M> average, Vector<const M> p, double decay,
                    Vector<const kernels::UpdateScalars> scalars);

template <class M>
class WeightAverage {
 public:
  /// Stores the elements in layouts.moments, which this rank updates; nothing with ema_decay = 0. host_bucket: as of
  /// OptimizerSetup.
  WeightAverage(const deck::OptimizerConfig& config, const model::ParameterTable& table,
                const nn::ParameterLayouts& layouts, Arena& arena, std::size_t host_bucket = 0);
  ~WeightAverage();
  WeightAverage(WeightAverage&&) noexcept;

  /// The initial weights of this seed.
  void begin(const model::ParameterTable& table, std::int64_t seed);
  /// Queues the update of the average after that of master, if `scalars` carry it out; in host memory in parts, each
  /// after that of the optimizer (Optimizer::continue_update). No communication.
  void update(Device& device, Vector<const M> master, Vector<const kernels::UpdateScalars> scalars);
  void continue_update(Device& device, index_t source);
  void finish_update(Device& device);
  /// /optimizer/ema of a checkpoint; empty without an average.
  std::vector<Moment<M>> states() const;

 private:
  struct Update;  // its parts, and what is queued of them

  double decay_;
  nn::BufferLayout layout_;
  Vector<M> values_;
  std::unique_ptr<Update> update_;  // null: no average
};

}  // namespace nanotron::optim
