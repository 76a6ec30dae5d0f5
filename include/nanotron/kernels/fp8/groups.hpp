#pragma once

// FP8 operands of grouped GEMMs (kernels/gemm/grouped/grouped_gemm_fp8.hpp): the rows of all groups, of which only the
// device knows where each group begins. Their codes:
//
//   rows      (R, padded width)          where the values are
//   columns   (width, 128 tiles)         the rows of a group begin at a multiple of 128, with zeros after its last one;
//                                        tiles = fp8_group_tiles(R, groups), whatever the groups are
//
// Scales, as in quantise.hpp and blocks.hpp: one for each group (Fp8Scaling::tensor), or tiles, which in the columns
// begin with each group. Then a group's codes and scales are those of its rows alone.

#include "nanotron/kernels/fp8/blocks.hpp"

namespace nanotron::kernels {

/// At most this many tiles of 128 rows.
constexpr index_t fp8_group_tiles(index_t rows, index_t groups) { return rows / fp8_block + groups; }

/// y: rows, columns or both; y.scaling tensor or tiles, with one scale for each group in y.scale, or the scales of the
/// layouts that y has. begin (groups + 1), see grouped_gemm.hpp. maxima (R): workspace where scaling is that of
/// tensors. Overwrites the codes of the rows of groups, their padding, and the scales. E: e4m3 or e5m2.
template <class E>
void quantise_groups(Device& device, Matrix<const bf16> x, Vector<const std::int64_t> begin, Vector<float> maxima,
                     const Fp8Matrix<E>& y);

}  // namespace nanotron::kernels
