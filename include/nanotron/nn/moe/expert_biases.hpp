#pragma once

// The biases of the experts here (GPT-OSS): of gate and up, which the tensor-parallel group shards with the width, and
// of the down projection (kernels/moe/expert_bias.hpp), which one rank of the group adds; or all, where they have the
// sums of rows over the group (ExpertSums).

#include <vector>

#include "nanotron/nn/linear/linear.hpp"
#include "nanotron/nn/moe/moe_memory.hpp"

namespace nanotron::nn {

template <class T>
struct ExpertBias {
  using M = master_t<T>;
  Vector<const M> gate_up, down;
  Vector<M> gate_up_gradient, down_gradient;
};

/// Needs the numbers of rows on the host (deck::ExpertGemms::library). Rows are those of ExpertRows; where its cuts
/// split the sums over rows, each of `sequences` sequences has its own gradients, gradient_stride elements apart.
template <class T>
class ExpertBiases {
 public:
  using M = master_t<T>;
  /// experts: those here, or none. adds_down: whether this rank adds those of the down projection.
  ExpertBiases(std::vector<ExpertBias<T>> experts, bool adds_down, index_t sequences, index_t gradient_stride)
      : experts_(std::move(experts)), adds_down_(adds_down), sequences_(sequences), gradient_stride_(gradient_stride) {}

  bool exist() const { return !experts_.empty(); }
  /// Elements of the workspace of backward_gate_up and backward_down.
  static index_t workspace_size(Processor processor, const MoeSizes& sizes);

  /// gate_up (R, gate | up) += b; y (R, hidden) += w b.
  void add_gate_up(Device& device, const ExpertRows& rows, Matrix<T> gate_up) const;
  void add_down(Device& device, const ExpertRows& rows, Vector<const M> weights, Matrix<T> y) const;
  /// The part of dweights that add_down has, added.
  void backward_weights(Device& device, const ExpertRows& rows, Matrix<const T> dy, Vector<M> dweights) const;
  /// Accumulate the gradients of the biases. dy (R, hidden) is overwritten.
  void backward_gate_up(Device& device, const ExpertRows& rows, Matrix<const T> dgate_up, Vector<M> workspace) const;
  void backward_down(Device& device, const ExpertRows& rows, Matrix<T> dy, Vector<const M> weights,
                     Vector<M> workspace) const;

 private:
  // dbias += the sums of an expert's rows.
  void add_sums(Device& device, const ExpertRows& rows, std::size_t expert, Matrix<const T> dy, Vector<M> dbias,
                Vector<M> workspace) const;

  std::vector<ExpertBias<T>> experts_;
  bool adds_down_;
  index_t sequences_, gradient_stride_;
};

}  // namespace nanotron::nn
