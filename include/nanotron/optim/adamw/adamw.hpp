#pragma once

// AdamW (Loshchilov and Hutter, 2019) in the order of operations of PyTorch:
//
//   g' = gradient_scale g
//   p *= 1 - learning_rate weight_decay
//   m = beta1 m + (1 - beta1) g'           v = beta2 v + (1 - beta2) g'^2
//   p -= learning_rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)         t: the update's number

#include "nanotron/kernels/optim/update_operands.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::optim {

struct AdamwStep {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
};

/// Queues the update of a part. States m, v. M is double or float; scalars are computed in fp64.
template <class M>
void update_by_adamw(Device& device, const kernels::UpdateOperands<M>& operands, const AdamwStep& step);

}  // namespace nanotron::optim
