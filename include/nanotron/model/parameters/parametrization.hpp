#pragma once

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/keys/model.hpp"

// How the initial standard deviation and the learning rate scale with the width: model%parametrization.
//
// 'mup' is the maximal update parametrization by its spectral condition (Yang, Simon and Bernstein 2023): weights and
// updates of a 2-D parameter have spectral norms of order sqrt(fan_out / fan_in), so that features change by as much
// at every width. The base model has hidden size base_hidden_size and the same proportions. With r = hidden_size /
// base_hidden_size, a standard deviation s and a learning rate lr tuned on the base become
//
//                                deviation     AdamW's rate    Muon's rate     fan-in, fan-out grow as
//   embedding                    s             lr                              1, r
//   2-D parameters of a layer    s / sqrt(r)   lr / r          lr / sqrt(r)    r, r
//   head                         s / r         lr / r                          r, 1
//   norms, biases                              lr                              1, r
//
// AdamW's update has entries of order lr and low rank: its norm is lr sqrt(fan_in fan_out). Muon's update has norm
// 0.2 lr sqrt(max(fan_in, fan_out)). The head's row is that of Yang et al. 2022 (table 8). Weight decay per step is
// lr x decay with the unscaled lr in all rows. Attention keeps the factor 1 / sqrt(head_dim): width adds heads and
// head_dim is constant, so it differs from 1 / head_dim (Yang et al. 2022, definition 4.1) only by a constant.

namespace nanotron::model {

enum class Role { embedding, hidden, residual, output };  // residual: a hidden weight whose output is added to x

struct Scaling {
  double deviation = 0.0;     // of the initial values
  double fan_in_ratio = 1.0;  // fan-in over that of the base; 1 in the standard parametrization
};
Scaling scaling_of(const deck::ModelConfig& model, Role role);

/// Factors on the learning rate.
double adamw_rate_factor(double fan_in_ratio);
double muon_rate_factor(double fan_in_ratio);

/// base_hidden_size and untied embeddings with 'mup'.
void check_parametrization(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::model
