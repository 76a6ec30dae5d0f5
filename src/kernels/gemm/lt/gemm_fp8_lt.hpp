#pragma once

#include "kernels/gemm/gemm_fp8_backend.hpp"
#include "kernels/gemm/lt/gemm_plans.hpp"

namespace nanotron::kernels::detail {

// The library's number, of ScaleModes (gemm_fp8_cuda.cpp, gemm_fp8_hip.cpp).
std::int32_t scale_mode(Fp8Scaling scaling);

}  // namespace nanotron::kernels::detail
