#pragma once

// How initial deviations and learning rates follow the width: model%parametrization.
//
// 'mup' is the maximal update parametrization by its spectral condition (Yang, Simon and Bernstein 2023): weights and
// updates of a matrix have spectral norms of order sqrt(fan_out / fan_in), so that features change by as much at every
// width. Relative to a base of hidden size `base_hidden_size` and the same proportions, r = hidden_size /
// base_hidden_size, what a learning rate and a deviation s do there they do here with
//
//                            deviation     AdamW's rate    Muon's rate     since fan-in, fan-out grow as
//   embedding                s             lr                              1, r
//   matrices of a layer      s / sqrt(r)   lr / r          lr / sqrt(r)    r, r
//   head                     s / r         lr / r                          r, 1
//   norms, biases                          lr                              1, r
//
// AdamW's update has entries of order lr and low rank: a norm of lr sqrt(fan_in fan_out). Muon's has the norm
// 0.2 lr sqrt(max(fan_in, fan_out)). The head's row is that of Yang et al. 2022 (table 8). Weight decay is lr decay, not
// multiplied, in all rows. Attention stays at 1 / sqrt(head_dim): it is the number of heads that grows with the width,
// and where head_dim is constant that is 1 / head_dim (Yang et al. 2022, definition 4.1) but for a constant.

#include "nanotron/deck/config.hpp"

namespace nanotron::model {

enum class Role { embedding, hidden, residual, head };  // residual: a hidden matrix back into the hidden states

struct Scaling {
  double deviation = 0.0;     // of the initial values
  double fan_in_ratio = 1.0;  // fan-in over that of the base; 1 in the standard parametrization
};
Scaling scaling_of(const deck::ModelConfig& model, Role role);

/// What the learning rate is multiplied with.
double adamw_rate(double fan_in_ratio);
double muon_rate(double fan_in_ratio);

}  // namespace nanotron::model
