#pragma once

#include <string_view>

#include "nanotron/base/types.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::kernels {

/// Measured GEMM peak: FLOP/s of this rank's gemm<T> on square matrices of order n, the best of several measurements
/// within about `seconds`; on a GPU several GEMMs are queued at a time. The denominator of the efficiency that a run
/// reports. Allocates its own memory and frees it. All ranks of a node should call it at once: they share power and
/// memory bandwidth.
template <class T>
double gemm_peak(Device& device, index_t n, double seconds);

/// The order of the measured GEMM peak: 1024 on a host; on a GPU 8192, or less if the time of a launch is then small
/// compared with that of a GEMM. Half of that for fp64.
template <class T>
index_t gemm_peak_order(Device& device);

/// Peak that NVIDIA's data sheet states for GEMMs of this type as gemm.hpp computes them (fp8, bf16 and fp64 on
/// tensor cores, dense; fp32 without TF32), in FLOP/s. device: the name that CUDA gives. 0 for a device that is not in
/// the table, for a part of one (MIG), and for a type that its tensor cores lack.
double stated_peak(std::string_view device, ScalarType type);

}  // namespace nanotron::kernels
