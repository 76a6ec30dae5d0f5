#pragma once

// FP8 operands with a scale for each part of a matrix (Liu et al. 2024, "DeepSeek-V3", section 3.3.2): for 128 values
// along the sum (tiles; activations and gradients), for 128 x 128 values (blocks; weights). Each scale follows from the
// values of its part as in quantise.hpp. All codes are e4m3.
//
//   C_ij = sum over blocks b of the sum  scale_A(i, b) scale_B(j, b)  sum over k in b of A_ik B_jk      sums in fp32
//
// The codes of a matrix by rows and by columns both come from its values; tiles of the two differ, blocks do not.
//
// Scales of an operand (rows, k) lie as cuBLASLt reads them (CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
// _BLK128x128_32F), the fast extent padded to a multiple of 4:
//
//   tiles    (blocks of k, rows)              blocks   (blocks of rows, blocks of k)

#include <cstdint>

#include "nanotron/kernels/fp8/quantise.hpp"

namespace nanotron::kernels {

inline constexpr index_t fp8_block = 128;
NANOTRON_FUNCTION constexpr index_t fp8_blocks(index_t n) { return (n + fp8_block - 1) / fp8_block; }

/// Where the scales of an operand (rows, k) lie. Padding of k to fp8_padding changes nothing.
struct Fp8ScaleLayout {
  Fp8Scaling scaling = Fp8Scaling::tensor;
  index_t leading = 0, count = 1;

  Fp8ScaleLayout(Fp8Scaling of, index_t rows, index_t k) : scaling(of) {
    if (of == Fp8Scaling::tensor) return;
    const bool are_tiles = of == Fp8Scaling::tiles;
    leading = ((are_tiles ? rows : fp8_blocks(k)) + 3) / 4 * 4;
    count = leading * (are_tiles ? fp8_blocks(k) : fp8_blocks(rows));
  }
  /// Of row r and block b of the sum.
  NANOTRON_FUNCTION index_t operator()(index_t r, index_t b) const {
    return scaling == Fp8Scaling::tensor  ? 0
           : scaling == Fp8Scaling::tiles ? b * leading + r
                                          : r / fp8_block * leading + b;
  }
};

/// y.scaling: tiles or blocks. Overwrites the codes, their padding, and the scales of the layouts that y has.
void quantise_parts(Device& device, Matrix<const bf16> x, const Fp8Matrix<e4m3>& y);

}  // namespace nanotron::kernels
