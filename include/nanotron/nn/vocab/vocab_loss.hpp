#pragma once

// The output head and the cross-entropy in one, its vocabulary cut over the tensor-parallel group. The
// logits of a chunk of tokens are computed, turned into their gradient where they stand, used and
// forgotten: there is never a second copy of them, nor the logits of all tokens.
//
//   l = n W^T      loss_t = log(sum_j exp(l_j)) - l_target
//   dl = scale (softmax(l) - onehot(target))      dn = dl W, a part of the sum over the group      dW += dl^T n

#include <cstdint>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/step_traffic.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/nn/linear/linear.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

/// Memory of one chunk of tokens.
template <class T>
struct LossWorkspace {
  using M = master_t<T>;
  Matrix<T> logits;           // (chunk, local vocabulary)
  Vector<M> max;              // (chunk)
  Vector<M> sum_and_target;   // (2 chunk): summed over the group in one message

  /// chunk_width: of the vocabulary that the chunk is made for; 0: one chunk.
  LossWorkspace(Arena& arena, index_t tokens, index_t local_vocabulary, index_t chunk_width);
  index_t chunk() const { return static_cast<index_t>(logits.extent(0)); }
};

template <class T>
class VocabLoss {
 public:
  using M = master_t<T>;

  /// orders.out is also that of the softmax's sum.
  VocabLoss(Range vocabulary, Matrix<const T> weight, Matrix<M> gradient, comm::Group& tp,
            const LinearOrders& orders = {})
      : vocabulary_(vocabulary), weight_(weight), gradient_(gradient), tp_(&tp), orders_(orders) {}

  /// Of so many tokens: the largest logit, and the sum of exponentials with the target's.
  comm::StepTraffic traffic(index_t tokens) const {
    return {.tensor_parallel = comm::all_reduce_bytes(3 * tokens * static_cast<index_t>(sizeof(M)), tp_->size())};
  }

  /// n (tokens, hidden), targets (tokens; negative: ignored) -> loss_rows (tokens), overwritten, the same on
  /// every rank of the group. Collective over the group, as is backward.
  void forward(Device& device, Matrix<const T> n, Vector<const std::int32_t> targets,
               const LossWorkspace<T>& work, Vector<double> loss_rows) const;

  /// The same and this rank's part of dn (tokens, hidden), overwritten, of scale * (sum of the losses); the
  /// weight's gradient is accumulated.
  void forward_backward(Device& device, Matrix<const T> n, Vector<const std::int32_t> targets, double scale,
                        const LossWorkspace<T>& work, Vector<double> loss_rows, Matrix<T> dn) const;

  /// logits (n rows, local vocabulary) of the rows of n, for sampling. No communication.
  void logits(Device& device, Matrix<const T> n, Matrix<T> logits) const;

 private:
  struct Chunk;
  void softmax_statistics(Device& device, const Chunk& chunk) const;

  Range vocabulary_;
  Matrix<const T> weight_;
  Matrix<M> gradient_;
  comm::Group* tp_;
  LinearOrders orders_;
};

}  // namespace nanotron::nn
