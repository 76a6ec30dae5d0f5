#ifdef NANOTRON_WITH_HIPBLASLT
#include "kernels/gemm/lt/gemm_fp8_lt.hpp"

namespace nanotron::kernels::detail {

// hipBLASLt 1.1: "not supported yet".
bool has_block_scales() { return false; }
std::int32_t scale_mode(Fp8Scaling) { return 0; }

}  // namespace nanotron::kernels::detail
#endif
