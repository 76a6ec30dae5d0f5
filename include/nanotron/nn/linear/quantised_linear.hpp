#pragma once

// The interface of linear layers whose GEMMs quantise their operands (nn/linear/fp8_linear.hpp).

#include <vector>

#include "nanotron/base/fp8.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/shard.hpp"
#include "nanotron/tensor/tensor.hpp"

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

/// What a quantised layer keeps of its input; empty in other layers.
struct OperandCodes {
  Fp8Columns<e4m3> kept{};  // empty: backward quantises the input again
  Vector<float> maxima{};   // max |x| of each row, from what wrote the input; empty: computed where it is quantised
};

template <class T>
struct RowGemm;  // nn/linear/linear.hpp

template <class T>
class QuantisedLinear {
 public:
  virtual ~QuantisedLinear() = default;

  /// y <- x op(W) + addend of a chunk of tokens, as the GEMM says.
  virtual void multiply(Device& device, const RowGemm<T>& gemm, Matrix<const T> x, Matrix<T> y,
                        index_t chunk) const = 0;
  /// dW += dy^T x. Right after the input gradient of this layer, unless quantises_gradient_again().
  virtual void backward_weight(Device& device, Matrix<const T> dy, Matrix<const T> x, const OperandCodes& of_x,
                               Matrix<master_t<T>> gradient) const = 0;
  /// Whether backward_weight reads dy, not the codes that the input gradient left.
  virtual bool quantises_gradient_again() const = 0;
};

}  // namespace nanotron::nn
