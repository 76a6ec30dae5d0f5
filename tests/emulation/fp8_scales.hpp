#pragma once

// The scales of FP8 operands of the emulated cuBLASLt.

#include <cublasLt.h>
#include <fmt/format.h>

#include <cstdint>

#include "emulation/device_memory.hpp"
#include "emulation/scheduler.hpp"

namespace nanotron::emulation {

// The scales of an operand of `rows` rows or columns with sums over k, as Transformer Engine 2.20 lays them out for
// cublasLtMatmul (common/transpose/quantize_transpose_*_blockwise.cu): the fast extent is padded to a multiple of 4.
struct Scales {
  const float* first = nullptr;
  std::int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;

  static std::int64_t blocks(std::int64_t n) { return (n + 127) / 128; }
  static std::int64_t padded(std::int64_t n) { return (n + 3) / 4 * 4; }
  double operator()(std::int64_t row, std::int64_t term, std::int64_t rows, std::int64_t k) const {
    if (first == nullptr) return 1.0;
    if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) return first[term / 128 * padded(rows) + row];
    if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F) return first[row / 128 * padded(blocks(k)) + term / 128];
    return *first;
  }
  void require(std::int64_t rows, std::int64_t k) const {
    if (first == nullptr) return;
    const std::int64_t count = mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F       ? padded(rows) * blocks(k)
                               : mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F ? padded(blocks(k)) * blocks(rows)
                                                                                     : 1;
    require_device(first, static_cast<std::size_t>(count) * sizeof *first, "the scales of an FP8 operand");
  }
};

// With scales of 128 values along the sum, or of 128 x 128: what Transformer Engine 2.20 requires before it calls
// cublasLtMatmul (common/gemm/cublaslt_gemm.cu).
inline void require_scale_modes(const Scales& a, const Scales& b, std::int64_t n, bool fast_accumulation) {
  const auto is_of_parts = [](std::int32_t mode) {
    return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F || mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  };
  if (!is_of_parts(a.mode) && !is_of_parts(b.mode)) return;
  const auto demand = [&](bool holds, const char* rule) {
    if (!holds) fault(fmt::format("cublasLtMatmul in FP8 with scales of parts: {}", rule));
  };
  demand(is_of_parts(a.mode) && is_of_parts(b.mode), "one operand has one scale, the other several");
  demand(a.mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F || b.mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
         "both operands have scales of 128 x 128");
  demand(a.first != nullptr && b.first != nullptr, "an operand has no scales");
  demand(!fast_accumulation, "fast accumulation");
  demand(b.mode != CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F || n % 8 == 0,
         "n must be a multiple of 8 where B has scales of 128 values");
  for (const float* scales : {a.first, b.first})
    demand(reinterpret_cast<std::uintptr_t>(scales) % 16 == 0, "scales must be aligned to 16 bytes");
}

}  // namespace nanotron::emulation
