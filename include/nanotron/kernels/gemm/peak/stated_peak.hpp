#pragma once

#include <string_view>

#include "nanotron/base/types.hpp"

namespace nanotron::kernels {

/// Peak that NVIDIA's data sheet states for GEMMs of this type as gemm.hpp computes them (fp8, bf16 and fp64 on
/// tensor cores, dense; fp32 without TF32), in FLOP/s. device: the name that CUDA gives. 0 for a device that is not in
/// the table, for a part of one (MIG), and for a type that its tensor cores lack.
double stated_peak(std::string_view device, ScalarType type);

}  // namespace nanotron::kernels
