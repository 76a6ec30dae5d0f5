#pragma once

// Experts with FP8 operands (nn/linear/fp8_linear.hpp has the formats). For the rows x_e of expert e:
//
//   y_e = x_e W_e^T        x by rows, W by rows
//   dx_e = dy_e W_e        dy by rows, W by columns
//   dW_e += dy_e^T x_e     dy and x by columns, padded to what GEMMs need, with zeros
//
// Rows are quantised in the layout that a GEMM reads, before it: x and dy twice each. What has one scale:
//
//   library   a piece of an expert's rows (expert_linear.hpp), or tiles that begin with the piece
//   grouped   the rows of an expert, or tiles that begin with its rows; the device alone knows them

#include "nanotron/kernels/gemm/grouped/grouped_gemm_fp8.hpp"
#include "nanotron/nn/moe/expert_codes.hpp"

namespace nanotron::nn {

/// Codes of one weight (out, in) of each expert here, one after another, in both layouts.
struct Fp8Experts {
  Matrix<e4m3> rows{};     // (experts x out, padded in)
  Matrix<e4m3> columns{};  // (experts x in, padded out)
  Vector<float> scales{}, column_scales{};
  index_t experts = 0;
  kernels::Fp8Scaling scaling = kernels::Fp8Scaling::tensor;  // or blocks

  index_t out() const { return static_cast<index_t>(rows.extent(0)) / experts; }
  index_t in() const { return static_cast<index_t>(columns.extent(0)) / experts; }
  kernels::Fp8Matrix<e4m3> operator[](index_t e) const;
  kernels::Fp8GroupWeights by_rows() const { return {rows, scales.data(), experts, scaling}; }
  kernels::Fp8GroupWeights by_columns() const {
    const bool has_one = scaling == kernels::Fp8Scaling::tensor;
    return {columns, has_one ? scales.data() : column_scales.data(), experts, scaling};
  }
};

Fp8Experts take_fp8_experts(Arena& arena, index_t experts, index_t out, index_t in, kernels::Fp8Scaling scaling);

std::shared_ptr<const ExpertCodes<bf16>> make_fp8_experts(const Fp8Experts& weights);

/// scaling: of the weights.
ExpertCodeBytes fp8_expert_bytes(const MoeSizes& sizes, int ep_size, kernels::Fp8Scaling scaling, Processor processor);

}  // namespace nanotron::nn
