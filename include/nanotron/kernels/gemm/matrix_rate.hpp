#pragma once

#include "nanotron/tensor/device.hpp"

namespace nanotron::kernels {

/// Operations per second of this rank's gemm<T> on square matrices of order n, the best of several products
/// within about `seconds`: what the share a run reaches is measured against. Takes memory of its own and gives
/// it back. Have all ranks of a node call it at once: they share its power and bandwidth.
template <class T>
double matrix_rate(Device& device, index_t n, double seconds);

}  // namespace nanotron::kernels
