#pragma once

// What a layer adds to the denominator of attention's softmax besides its keys. Where tokens or heads are distributed
// over ranks, each rank calls it for those that it has.

#include "nanotron/kernels/attention/attention.hpp"

namespace nanotron::nn {

template <class T>
class DenominatorTerm {
 public:
  using M = master_t<T>;
  virtual ~DenominatorTerm() = default;

  /// After attention_forward of this shape: updates out and lse.
  virtual void forward(Device& device, const kernels::AttentionShape& shape, const MatrixRef<T>& out,
                       const Vector<M>& lse) const = 0;
  /// Before attention_backward, from what forward left. Accumulates gradients of weights. workspace has
  /// workspace_bytes, and is overwritten.
  virtual void backward(Device& device, const kernels::AttentionShape& shape, const MatrixRef<const T>& out,
                        const MatrixRef<const T>& dout, const Vector<const M>& lse,
                        const Vector<std::byte>& workspace) const = 0;
  virtual std::size_t workspace_bytes(const kernels::AttentionShape& shape, Processor processor) const = 0;
};

}  // namespace nanotron::nn
