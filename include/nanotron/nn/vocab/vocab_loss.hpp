#pragma once

// Output head and cross-entropy, fused; the vocabulary is sharded over the tensor-parallel group. Tokens are processed
// in chunks: compute the logits of a chunk, overwrite them with their gradient, use it, discard it. The logits of all
// tokens never exist at once, and there is no second copy.
//
//   l = n W^T      loss_t = log(sum_j exp(l_j)) - l_target
//   dl = scale (softmax(l) - onehot(target))      dn = dl W, a partial sum over the group      dW += dl^T n

#include <cstdint>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/watch/step_traffic.hpp"
#include "nanotron/nn/linear/linear.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

/// Memory of one chunk of tokens.
template <class T>
struct LossWorkspace {
  using M = master_t<T>;
  MatrixRef<T> logits;       // (chunk, local vocabulary); on a GPU rows begin at multiples of 128 bytes
  Vector<M> max;             // (chunk)
  Vector<M> own;             // (2 chunk), on a GPU: of this rank's logits (kernels/vocab/cross_entropy.hpp)
  Vector<M> sum_and_target;  // (2 chunk): summed over the group in one message

  /// chunk_width: logits per token by which the chunk length is chosen (64 MiB, at least 128 tokens; on a GPU 8192
  /// tokens); 0: one chunk.
  LossWorkspace(Arena& arena, index_t tokens, index_t local_vocabulary, index_t chunk_width);
  index_t chunk() const { return logits.rows; }
};

template <class T>
class VocabLoss {
 public:
  using M = master_t<T>;

  /// orders.out is also the order of the softmax's sum, where GEMMs have a fixed one (GemmMode).
  VocabLoss(Range vocabulary, Matrix<const T> weight, Matrix<M> gradient, comm::Group& tp,
            const LinearOrders& orders = {})
      : vocabulary_(vocabulary), weight_(weight), gradient_(gradient), tp_(&tp), orders_(orders) {}

  /// For this many tokens: all-reduces of the maximum logit, and of the sum of exponentials with the target's logit.
  comm::StepTraffic traffic(index_t tokens) const {
    return {.tensor_parallel = comm::all_reduce_bytes(3 * tokens * static_cast<index_t>(sizeof(M)), tp_->size())};
  }

  /// n (tokens, hidden), targets (tokens; negative: ignored) -> loss_rows (tokens), overwritten, the same on
  /// every rank of the group. Collective over the group, as is forward_backward.
  void forward(Device& device, Matrix<const T> n, Vector<const std::int32_t> targets, const LossWorkspace<T>& work,
               Vector<double> loss_rows) const;

  /// Also the gradients of scale * (sum of the losses): this rank's partial sum of dn (tokens, hidden), overwritten;
  /// the weight gradient, accumulated.
  void forward_backward(Device& device, Matrix<const T> n, Vector<const std::int32_t> targets, double scale,
                        const LossWorkspace<T>& work, Vector<double> loss_rows, Matrix<T> dn) const;

  /// n (tokens, hidden) -> logits (tokens, local vocabulary), overwritten. For sampling. No communication.
  void logits(Device& device, Matrix<const T> n, MatrixRef<T> logits) const;

 private:
  struct Chunk;
  void loss_of_shards(Device& device, const Chunk& chunk) const;

  Range vocabulary_;
  Matrix<const T> weight_;
  Matrix<M> gradient_;
  comm::Group* tp_;
  LinearOrders orders_;
};

}  // namespace nanotron::nn
