#pragma once

// GEMMs that a linear layer uses instead of kernels::gemm on the stored operands: they round the operands to codes of a
// narrower type, and may keep the codes of an input for backward (nn/linear/fp8_linear.hpp).

#include <cstddef>

#include "nanotron/base/types.hpp"
#include "nanotron/comm/watch/step_traffic.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/shard.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::nn {

/// What such GEMMs keep of an operand; empty in other layers.
struct OperandCodes {
  Vector<std::byte> kept{};  // for the weight gradient; empty: made again then, from what is stored
  Vector<float> scales{};    // of `kept`, one for each chunk of tokens
  Vector<float> maxima{};    // max |x| of each row, from what wrote the operand; empty: computed where codes are made
};

template <class T>
struct RowGemm;  // nn/linear/linear.hpp

/// What the GEMMs of a layer communicate.
struct GemmTraffic {
  comm::StepTraffic forward{}, backward_input{}, backward_weight{};
};

template <class T>
class LinearGemms {
 public:
  virtual ~LinearGemms() = default;

  /// y <- x op(W) + addend of a chunk of tokens, as the GEMM says.
  virtual void multiply(Device& device, const RowGemm<T>& gemm, Matrix<const T> x, Matrix<T> y,
                        index_t chunk) const = 0;
  /// dW += dy^T x. Right after the input gradient of this layer, unless codes of dy are made again.
  virtual void backward_weight(Device& device, Matrix<const T> dy, Matrix<const T> x, const OperandCodes& of_x,
                               Matrix<master_t<T>> gradient) const = 0;

  /// Whether a part of this GEMM is added once to the sum over the tensor-parallel ranks, and not by multiply; and that
  /// addition: y += the part of these tokens, whose rows y has.
  virtual bool adds_to_sum(const RowGemm<T>&) const { return false; }
  virtual void add_to_sum(Device&, const RowGemm<T>&, const Range& /*tokens*/, const MatrixRef<T>& /*y*/) const {}
  /// Of so many tokens.
  virtual GemmTraffic traffic(index_t) const { return {}; }
};

}  // namespace nanotron::nn
