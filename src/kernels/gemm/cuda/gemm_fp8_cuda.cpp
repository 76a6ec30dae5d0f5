#include "kernels/gemm/lt/gemm_fp8_lt.hpp"

namespace nanotron::kernels::detail {

// Blackwell scales parts of 32 in powers of two instead. A plan without a GPU is one of Hopper.
bool has_block_scales() {
  if (!Kokkos::is_initialized()) return true;
  static const bool has = [] {
    if (CUBLAS_VERSION < 120900 || cublasLtGetVersion() < 120900) return false;
    int current = 0;
    gpuDeviceProp properties{};
    NANOTRON_CHECK_GPU(gpuGetDevice(&current));
    NANOTRON_CHECK_GPU(gpuGetDeviceProperties(&properties, current));
    return properties.major == 9;
  }();
  return has;
}

#if CUBLAS_VERSION >= 120900
std::int32_t scale_mode(Fp8Scaling scaling) {
  return scaling == Fp8Scaling::tensor  ? CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F
         : scaling == Fp8Scaling::tiles ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                        : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
}
#else
std::int32_t scale_mode(Fp8Scaling) { return 0; }
#endif

}  // namespace nanotron::kernels::detail
