#pragma once

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// The columns of p (m, r) become orthonormal one after the other (Gram and Schmidt, twice against those before: Giraud
/// et al. 2005). One that depends on them becomes a random direction; behind m columns the others become zero.
/// M is double or float, sums are fp64 and in a fixed order.
template <class M>
void orthogonalise(Device& device, Matrix<M> p);

}  // namespace nanotron::kernels
