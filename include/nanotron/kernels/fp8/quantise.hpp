#pragma once

// FP8 operands of GEMMs, with one scale for a matrix that follows from its own values (per tensor, current scaling):
//
//   amax = max |x|      e = the largest with 2^e amax <= largest of the format      code = round(2^e x)
//   x ~ scale code      scale = 2^-e
//
// The scale is a power of two, so that scaling is exact: it commutes with every rounding of the product. amax = 0 and
// an amax that is not finite give scale 1; what is not finite stays so (base/fp8.hpp), down to the loss.
//
// Tensor-core GEMMs need the summed index contiguous in both operands. So a matrix has codes in up to two layouts;
// extents that are contiguous are padded with zeros to a multiple of fp8_padding. Scales of parts of a matrix:
// blocks.hpp.

#include "nanotron/base/fp8.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

inline constexpr index_t fp8_padding = 16;
constexpr index_t fp8_padded(index_t n) { return (n + fp8_padding - 1) / fp8_padding * fp8_padding; }

/// What one scale is for: a matrix; 128 values along the sum (activations, gradients); 128 x 128 values (weights).
enum class Fp8Scaling { tensor, tiles, blocks };

/// Codes as an operand of a GEMM: (rows, padded extent of the sum). scale: on the device; the first of several.
template <class E>
struct Fp8Operand {
  Matrix<E> codes{};
  const float* scale = nullptr;
  Fp8Scaling scaling = Fp8Scaling::tensor;
};

/// A matrix (r, c) as codes. Either layout may be empty where it is not needed.
template <class E>
struct Fp8Matrix {
  Matrix<E> rows{};     // (r, padded c)
  Matrix<E> columns{};  // (c, padded r): transposed
  float* scale = nullptr;
  float* column_scales = nullptr;  // those of `columns`, if scaling is not that of a tensor
  Fp8Scaling scaling = Fp8Scaling::tensor;

  Fp8Operand<E> by_rows() const { return {rows, scale, scaling}; }
  Fp8Operand<E> by_columns() const { return {columns, scaling == Fp8Scaling::tensor ? scale : column_scales, scaling}; }
};

/// y.scale from the maxima of the rows of x (row_maxima of kernels/elementwise/elementwise.hpp), then the codes; both
/// overwritten, the padding too.
template <class E>
void quantise(Device& device, Matrix<const bf16> x, Vector<const float> maxima, const Fp8Matrix<E>& y);

/// y (rows, columns) = the values of the codes, exact; x may be wider by its padding.
template <class E>
void dequantise(Device& device, const Fp8Operand<E>& x, Matrix<bf16> y);

}  // namespace nanotron::kernels
