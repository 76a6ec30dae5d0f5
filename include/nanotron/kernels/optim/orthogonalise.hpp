#pragma once

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// Orthonormalises the columns of p (m, r) in place, in order: Gram-Schmidt, twice per column (Giraud et al. 2005).
/// A column that depends on those before it becomes a random direction; columns m, m + 1, ... become zero.
/// M is double or float, sums are fp64 and in a fixed order.
template <class M>
void orthogonalise(Device& device, Matrix<M> p);

}  // namespace nanotron::kernels
