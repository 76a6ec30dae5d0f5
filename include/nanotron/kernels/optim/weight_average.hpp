#pragma once

// Exponential moving average of the weights:  average += (1 - decay) (p - average), PyTorch's lerp.

#include "nanotron/kernels/optim/update_scalars.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// average (n) is updated with p (n) if scalars (1) allow the update of p, whose kernels come before this one. M is
/// double or float.
template <class M>
void weight_average(Device& device, Vector<M> average, Vector<const M> p, double decay,
                    Vector<const UpdateScalars> scalars);

}  // namespace nanotron::kernels
