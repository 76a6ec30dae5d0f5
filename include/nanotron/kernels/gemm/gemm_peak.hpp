#pragma once

#include "nanotron/tensor/device.hpp"

namespace nanotron::kernels {

/// Measured GEMM peak: FLOP/s of this rank's gemm<T> on square matrices of order n, the best of several GEMMs
/// within about `seconds`. The denominator of the efficiency that a run reports. Allocates its own memory and
/// frees it. All ranks of a node should call it at once: they share power and memory bandwidth.
template <class T>
double gemm_peak(Device& device, index_t n, double seconds);

}  // namespace nanotron::kernels
