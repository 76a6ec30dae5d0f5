#pragma once

// The GEMMs of a linear layer with FP8 operands (kernels/gemm/gemm_fp8.hpp; Micikevicius et al. 2022): weights and
// inputs in e4m3, gradients in e5m2, each quantised with the scale of its own largest value where a GEMM reads it.
//
//   y = x W^T        x by rows, W by rows
//   dx = dy W        dy by rows, W by columns
//   dW += dy^T x     dy by columns, x by columns
//
// x and dy are quantised once, in both layouts; the column layout is kept for the weight gradient. Tokens that a
// TensorParallelRegion multiplies chunk by chunk have a scale for each chunk, and dW is a sum over chunks.
//
// With scales of parts (kernels/fp8/blocks.hpp) inputs and gradients have tiles, weights blocks, and all codes are
// e4m3.

#include <vector>

#include "nanotron/kernels/fp8/blocks.hpp"
#include "nanotron/kernels/gemm/gemm_fp8.hpp"
#include "nanotron/nn/linear/linear_gemms.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

/// The ranges of tokens that are multiplied one by one, each with a scale of its own.
class Fp8Chunks {
 public:
  explicit Fp8Chunks(std::vector<Range> chunks);

  index_t size() const { return static_cast<index_t>(chunks_.size()); }
  const Range& operator[](index_t c) const { return chunks_[static_cast<std::size_t>(c)]; }
  /// Tokens before chunk c where each chunk is padded (kernels::fp8_padded); c = size(): all.
  index_t padded_before(index_t c) const { return padded_before_[static_cast<std::size_t>(c)]; }
  index_t padded_tokens() const { return padded_before_.back(); }
  index_t longest() const;
  /// Scales of the chunks before c of inputs or gradients by columns; c = size(): of all.
  index_t scales_before(index_t c, index_t width, kernels::Fp8Scaling scaling) const;
  index_t scales(index_t width, kernels::Fp8Scaling scaling) const { return scales_before(size(), width, scaling); }

 private:
  std::vector<Range> chunks_;
  std::vector<index_t> padded_before_;
};

/// Codes by columns of all tokens, (width, padded tokens) of one chunk after another; empty where they are not kept.
template <class E>
struct Fp8Columns {
  Vector<E> codes{};
  Vector<float> scales{};  // of each chunk
};
template <class E>
Fp8Columns<E> columns_in(const Vector<std::byte>& codes, const Vector<float>& scales) {
  return {Vector<E>(reinterpret_cast<E*>(codes.data()), codes.extent(0)), scales};
}

/// Whether the codes of dy that the input gradient left are still there for the weight gradient.
enum class Fp8Gradients { of_input_gradient, quantised_again };

/// Shared by all linear layers; each overwrites it.
struct Fp8Workspace {
  const Fp8Chunks* chunks = nullptr;
  kernels::Fp8Scaling scaling = kernels::Fp8Scaling::tensor;  // or tiles, of inputs and gradients
  Fp8Gradients gradients = Fp8Gradients::of_input_gradient;
  Vector<std::byte> rows{};       // codes by rows of the longest chunk of the widest operand
  Fp8Columns<std::byte> input{};  // of inputs that backward quantises again
  Fp8Columns<std::byte> gradient{};
  Vector<float> maxima{};  // (tokens); with scales of parts empty
  Vector<float> scale{};   // of row codes without column codes, or those of row codes
};

/// G: the type of gradients: e5m2, or e4m3 with scales of parts.
template <class G>
class Fp8Linear final : public LinearGemms<bf16> {
 public:
  /// weight (out, in), quantised before each pass (src/model/layers/fp8_weights.hpp).
  Fp8Linear(const kernels::Fp8Matrix<e4m3>& weight, const Fp8Workspace& work) : weight_(weight), work_(work) {}

  void multiply(Device& device, const RowGemm<bf16>& gemm, Matrix<const bf16> x, Matrix<bf16> y,
                index_t chunk) const override;
  void backward_weight(Device& device, Matrix<const bf16> dy, Matrix<const bf16> x, const OperandCodes& of_x,
                       Matrix<float> gradient) const override;

 private:
  bool quantises_gradient_again() const { return work_.gradients == Fp8Gradients::quantised_again; }
  Fp8Columns<G> gradients() const { return columns_in<G>(work_.gradient.codes, work_.gradient.scales); }
  void quantise_swiglu(Device& device, const RowGemm<bf16>& gemm, Matrix<const bf16> gate_up, index_t chunk,
                       const kernels::Fp8Matrix<G>& codes) const;
  template <class E>
  kernels::Fp8Matrix<E> codes_of(const Fp8Columns<E>& columns, index_t tokens, index_t width, index_t chunk) const;

  kernels::Fp8Matrix<e4m3> weight_;
  Fp8Workspace work_;
};

}  // namespace nanotron::nn
