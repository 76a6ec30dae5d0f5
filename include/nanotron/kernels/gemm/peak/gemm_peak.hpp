#pragma once

#include "nanotron/tensor/device.hpp"

namespace nanotron::kernels {

/// Measured GEMM peak: FLOP/s of this rank's gemm<T> on square matrices of order n, the best of several measurements
/// within about `seconds`; on a GPU several GEMMs are queued at a time. The denominator of the efficiency that a run
/// reports. Allocates its own memory and frees it. All ranks of a node should call it at once: they share power and
/// memory bandwidth.
template <class T>
double gemm_peak(Device& device, index_t n, double seconds);

/// The order of the measured GEMM peak: 1024 on a host; on a GPU 8192, or less where that is not needed to make the
/// time of a launch small against that of a GEMM. Half of that for fp64.
template <class T>
index_t gemm_peak_order(Device& device);

}  // namespace nanotron::kernels
