#pragma once

// AdamW (Loshchilov and Hutter 2019) over the flat buffers of one rank, with the moments it owns.

#include <vector>

#include "nanotron/deck/config.hpp"
#include "nanotron/model/parameter_table.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::optim {

template <class M>
class Adamw {
 public:
  /// Moments start at zero. decayed says where in the flat buffers weight decay applies.
  Adamw(const deck::OptimizerConfig& config, std::vector<model::DecayRange> decayed, index_t size,
        Arena& arena);

  /// One update with gradient_scale * gradient. parameters and moments are updated; no communication.
  void update(Device& device, Vector<M> parameters, Vector<const M> gradient, double learning_rate,
              double gradient_scale);

  const Vector<M>& exp_avg() const { return exp_avg_; }
  const Vector<M>& exp_avg_sq() const { return exp_avg_sq_; }
  /// Updates done so far; part of a checkpoint.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

 private:
  deck::OptimizerConfig config_;
  std::vector<model::DecayRange> decayed_;
  Vector<M> exp_avg_;
  Vector<M> exp_avg_sq_;
  std::int64_t steps_ = 0;
};

}  // namespace nanotron::optim
