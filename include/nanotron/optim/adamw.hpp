#pragma once

// AdamW (Loshchilov and Hutter 2019) over what one rank updates of the flat parameters, with the moments of that.

#include <vector>

#include "nanotron/deck/config.hpp"
#include "nanotron/model/parameter_table.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::optim {

/// Elements updated alike, and where they begin in the buffers.
struct UpdatePart {
  index_t size, parameters, gradient, moments;
  bool decays;
};
std::vector<UpdatePart> update_parts(const model::ParameterTable& table, const nn::ParameterPlaces& places);

template <class M>
class Adamw {
 public:
  /// Moments start at zero; `size` elements of each.
  Adamw(const deck::OptimizerConfig& config, std::vector<UpdatePart> parts, index_t size, Arena& arena);

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
  std::vector<UpdatePart> parts_;
  Vector<M> exp_avg_;
  Vector<M> exp_avg_sq_;
  std::int64_t steps_ = 0;
};

}  // namespace nanotron::optim
