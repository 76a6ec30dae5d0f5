#pragma once

// The products of a linear layer with FP8 operands (kernels/gemm/gemm_fp8.hpp; Micikevicius et al. 2022): weights and
// inputs in e4m3, gradients in e5m2, each quantised with the scale of its own largest value where a GEMM reads it.
//
//   y = x W^T        x by rows, W by rows
//   dx = dy W        dy by rows, W by columns
//   dW += dy^T x     dy by columns, x by columns
//
// x and dy are quantised once, in both layouts; their copy by columns waits for the weight gradient. Tokens that a
// TensorParallelRegion multiplies chunk by chunk have a scale for each chunk, and dW is a sum over chunks.

#include <variant>
#include <vector>

#include "nanotron/kernels/gemm/gemm_fp8.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

/// Ranges of tokens that are multiplied one by one, in the order of the tokens.
class TokenChunks {
 public:
  explicit TokenChunks(std::vector<Range> chunks);

  index_t size() const { return static_cast<index_t>(chunks_.size()); }
  const Range& operator[](index_t c) const { return chunks_[static_cast<std::size_t>(c)]; }
  /// Tokens before chunk c where each chunk is padded (kernels::fp8_padded); c = size(): all.
  index_t padded_before(index_t c) const { return padded_before_[static_cast<std::size_t>(c)]; }
  index_t padded_tokens() const { return padded_before_.back(); }
  index_t longest() const;

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

/// Of a layer's input.
struct Fp8Input {
  Fp8Columns<e4m3> kept{};  // empty: backward quantises the input again
  Vector<float> maxima{};   // max |x| of each row, from what wrote the input; empty: computed where it is quantised
};

/// Whether the codes of dy that the input gradient left are still there for the weight gradient.
enum class Fp8Gradients { of_input_gradient, quantised_again };

/// Shared by all linear layers; each overwrites it.
struct Fp8Workspace {
  const TokenChunks* chunks = nullptr;
  Fp8Gradients gradients = Fp8Gradients::of_input_gradient;
  Vector<std::byte> rows{};  // codes by rows of the longest chunk of the widest operand
  Fp8Columns<e4m3> input{};  // of inputs that backward quantises again
  Fp8Columns<e5m2> gradient{};
  Vector<float> maxima{};  // (tokens)
  Vector<float> scale{};   // of codes by rows whose columns are not kept
};

/// y = x op(W) of a chunk of tokens, or x op(W) + addend where that is not empty; E of x.
template <class E>
struct Fp8Product {
  kernels::Fp8Operand<e4m3> weight{};
  Fp8Columns<E> columns{};       // of x, overwritten; empty: not written
  Vector<const float> maxima{};  // of the rows of all tokens; empty: computed here
  Fp8Workspace work{};

  void operator()(Device& device, Matrix<const bf16> x, Matrix<const bf16> addend, Matrix<bf16> y, index_t chunk) const;
  /// The places for the codes of a chunk (tokens, width).
  kernels::Fp8Matrix<E> codes_of(index_t tokens, index_t width, index_t chunk) const;
};
/// The same of the gradient of x = gate | up, which is not stored (kernels/mlp/swiglu_fp8.hpp).
struct Fp8SwigluProduct {
  Fp8Product<e5m2> of_gradient{};  // with maxima
  Matrix<const bf16> dh{};         // of all tokens

  void operator()(Device& device, Matrix<const bf16> gate_up, Matrix<const bf16> addend, Matrix<bf16> y,
                  index_t chunk) const;
};
struct NoFp8Product {};
using AnyFp8Product = std::variant<NoFp8Product, Fp8Product<e4m3>, Fp8Product<e5m2>, Fp8SwigluProduct>;

class Fp8Linear {
 public:
  /// weight (out, in), quantised before each pass (model/fp8_weights.hpp).
  Fp8Linear(const kernels::Fp8Matrix<e4m3>& weight, const Fp8Workspace& work) : weight_(weight), work_(work) {}

  Fp8Gradients gradients() const { return work_.gradients; }
  Fp8Product<e4m3> forward(const Fp8Input& x) const { return {weight_.by_rows(), x.kept, x.maxima, work_}; }
  Fp8Product<e5m2> backward_input(const Vector<const float>& maxima) const;
  /// dW += dy^T x.
  void backward_weight(Device& device, Matrix<const bf16> dy, Matrix<const bf16> x, const Fp8Input& of_x,
                       Matrix<float> gradient) const;

 private:
  kernels::Fp8Matrix<e4m3> weight_;
  Fp8Workspace work_;
};

}  // namespace nanotron::nn
