#pragma once

// One decoder layer, pre-norm (Radford et al. 2019; Touvron et al. 2023):
//
//   x_mid = x + attention(norm(x))        x_out = x_mid + mlp(norm(x_mid))
//
// Where the GEMM that ends a block does not add x, the norm that follows does, which reads the sum anyway: a layer then
// leaves its last sum to the next one.

#include <memory>

#include "nanotron/model/activations.hpp"

namespace nanotron::model {

/// Bytes that a layer, or a virtual stage, moves per micro-batch: forward; what recompute = 'full' does again; whole
/// backward, or its two parts.
struct LayerTraffic {
  comm::StepTraffic forward{}, recompute{}, backward{}, backward_input{}, backward_weight{};
};

/// What adds x to a block's output: the GEMM at the block's end where that is the whole output, one pass less; or the
/// norm after it.
enum class ResidualSum { in_gemm, in_norm };

template <class T>
class DecoderLayer {
 public:
  using M = master_t<T>;

  DecoderLayer(std::unique_ptr<const nn::Norm<T>> input_norm, const nn::Attention<T>& attention,
               std::unique_ptr<const nn::Norm<T>> middle_norm, std::unique_ptr<const nn::FeedForward<T>> mlp,
               nn::TensorParallelRegion<T>& region, ResidualSum sum)
      : input_norm_(std::move(input_norm)),
        attention_(attention),
        middle_norm_(std::move(middle_norm)),
        feed_forward_(std::move(mlp)),
        tp_region_(&region),
        attention_sum_(attention_.adds() ? sum : ResidualSum::in_norm),
        feed_forward_sum_(feed_forward_->adds() ? sum : ResidualSum::in_norm) {}

  LayerTraffic traffic() const;

  /// norm(x) -> act, x (hidden_rows, h): the rows of the hidden states on this rank. No communication.
  void normalise_input(Device& device, Matrix<const T> x, const LayerActivations<T>& act) const;
  /// The same where x is on entry what forward_output of the layer before left, and act_before its activations; x is
  /// complete on return. act may share its memory with act_before.
  void complete_and_normalise_input(Device& device, const LayerActivations<T>& act_before, Matrix<T> x,
                                    const LayerActivations<T>& act) const;
  /// x and norm(x) -> act, x_mid in act.middle: all that backward reads. Every function is collective over the
  /// tensor-parallel group unless it says otherwise.
  void forward_inside(Device& device, const nn::TokenBatch& batch, Matrix<const T> x, const LayerActivations<T>& act,
                      const Workspace<T>& work) const;
  /// After forward_inside: x_out (hidden_rows, h), or with ResidualSum::in_norm x_out - x_mid.
  void forward_output(Device& device, const nn::TokenBatch& batch, const LayerActivations<T>& act,
                      const Workspace<T>& work, Matrix<T> x_out) const;
  /// What forward_output left -> x_out. No communication.
  void complete(Device& device, const LayerActivations<T>& act, Matrix<T> x_out) const;

  /// Recomputes what Recompute::selective does not keep. No communication.
  void recompute_selective(Device& device, Matrix<const T> x, const LayerActivations<T>& act) const;

  /// dx (hidden_rows, h): gradient of x_out on entry, of x on return. Weight gradients are accumulated.
  void backward(Device& device, const nn::TokenBatch& batch, Matrix<const T> x, const LayerActivations<T>& act,
                const Workspace<T>& work, Matrix<T> dx) const;

  /// The same in two parts (Qi et al. 2023): first the gradients of x and of the norms; the weight gradients of the
  /// GEMMs at any time after it. The first part overwrites activations with what the second one reads:
  ///   x_out <- d x_out, act.middle <- d x_mid, qkv <- d qkv, gate_up <- d gate_up
  void backward_input(Device& device, const nn::TokenBatch& batch, Matrix<const T> x, const LayerActivations<T>& act,
                      const Workspace<T>& work, Matrix<T> x_out, Matrix<T> dx) const;
  void backward_weight(Device& device, const LayerActivations<T>& act, const Workspace<T>& work,
                       Matrix<const T> dx_out) const;

  /// Call it once before the first step, while the memory is zero, see nn::FeedForward.
  void prepare(Device& device, const LayerActivations<T>& act, const Workspace<T>& work) const {
    feed_forward_->prepare(device, act.feed_forward, work.feed_forward);
  }

  /// forward_inside of tokens that follow `past` cached ones.
  void forward_cached(Device& device, const nn::TokenBatch& batch, index_t past, Matrix<const T> x,
                      const LayerActivations<T>& act, const Workspace<T>& work,
                      const nn::KeyValueCache<T>& cache) const;

 private:
  void middle_forward(Device& device, const nn::TokenBatch& batch, Matrix<const T> x, const LayerActivations<T>& act,
                      const Workspace<T>& work) const;
  // dx += gradient of the norm's input; work.dn is the gradient of its output.
  void middle_norm_backward(Device& device, const LayerActivations<T>& act, const Workspace<T>& work,
                            Matrix<T> dx) const;
  void input_norm_backward(Device& device, Matrix<const T> x, const LayerActivations<T>& act,
                           const Workspace<T>& work, Matrix<T> dx) const;

  std::unique_ptr<const nn::Norm<T>> input_norm_;
  nn::Attention<T> attention_;
  std::unique_ptr<const nn::Norm<T>> middle_norm_;
  std::unique_ptr<const nn::FeedForward<T>> feed_forward_;
  nn::TensorParallelRegion<T>* tp_region_;
  ResidualSum attention_sum_, feed_forward_sum_;
};

}  // namespace nanotron::model
