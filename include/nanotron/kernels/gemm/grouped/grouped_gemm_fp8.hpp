#pragma once

// Grouped GEMMs (grouped_gemm.hpp) of FP8 operands (kernels/fp8/groups.hpp), on tensor cores of Ada and later. With the
// scales of group g, and blocks of 128 terms of each sum:
//
//   forward            Y_g   = X_g W_g^T      X by rows, W by rows
//   input gradient     dX_g  = dY_g W_g       dY by rows, W by columns
//   weight gradient    dW_g += dY_g^T X_g     dY and X by columns
//
// Each block of terms is summed by the tensor cores and added, times its scales, in fp32 (Liu et al. 2024,
// "DeepSeek-V3", section 3.3.2). The order depends on neither the number of rows nor that of groups.

#include "nanotron/kernels/fp8/groups.hpp"
#include "nanotron/kernels/gemm/grouped/grouped_gemm.hpp"

namespace nanotron::kernels {

/// The codes of a weight of each group, packed: (groups x rows, padded columns), and the scales, group by group: one
/// each, or blocks as Fp8ScaleLayout(blocks, rows, columns) has them.
struct Fp8GroupWeights {
  Matrix<const e4m3> codes{};
  const float* scales = nullptr;
  index_t groups = 0;
  Fp8Scaling scaling = Fp8Scaling::tensor;

  index_t rows() const { return static_cast<index_t>(codes.extent(0)) / groups; }
};

/// c (R, rows of W) <- the rows of each group in a, times W^T. a: codes by rows of e4m3 or e5m2. Columns of c: a
/// multiple of 2.
template <class A>
void grouped_rows_fp8(Device& device, const Fp8Operand<A>& a, const Fp8GroupWeights& w,
                      Vector<const std::int64_t> begin, Matrix<bf16> c);

/// dw (out, in) of each group += dY_g^T X_g; codes by columns: dy (out, 128 tiles), x (in, 128 tiles). rows: R. A: e5m2
/// with one scale for each group, e4m3 with tiles.
template <class A>
void grouped_backward_weight_fp8(Device& device, const Fp8Operand<A>& dy, const Fp8Operand<e4m3>& x, index_t rows,
                                 Vector<const std::int64_t> begin, const GroupMatrices<float>& dw);

}  // namespace nanotron::kernels
