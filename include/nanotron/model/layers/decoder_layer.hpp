#pragma once

// One decoder layer, pre-norm (Radford et al. 2019; Touvron et al. 2023):
//
//   x_mid = x + attention(norm(x))        x_out = x_mid + mlp(norm(x_mid))
//
#include <memory>

#include "nanotron/model/layers/activations.hpp"

namespace nanotron::model {

/// Bytes that a layer, or a virtual stage, moves per micro-batch: forward; what recompute = 'full' does again; whole
/// backward, or its two parts.
struct LayerTraffic {
  comm::StepTraffic forward{}, recompute{}, backward{}, backward_input{}, backward_weight{};
};

/// What adds x to a block's output: the block's last GEMM if it computes the whole output, one pass less; or the norm
/// after it, which for the last block is in the next layer (nn::HiddenStates).
enum class ResidualSum { in_gemm, in_norm };

template <class T>
class DecoderLayer {
 public:
  using M = master_t<T>;

  DecoderLayer(std::unique_ptr<const nn::Norm<T>> input_norm, std::unique_ptr<const nn::Attention<T>> attention,
               std::unique_ptr<const nn::Norm<T>> middle_norm, std::unique_ptr<const nn::FeedForward<T>> mlp,
               nn::TensorParallelRegion<T>& region, ResidualSum sum)
      : input_norm_(std::move(input_norm)),
        attention_(std::move(attention)),
        middle_norm_(std::move(middle_norm)),
        feed_forward_(std::move(mlp)),
        tp_region_(&region),
        attention_sum_(attention_->adds() ? sum : ResidualSum::in_norm),
        feed_forward_sum_(feed_forward_->adds() ? sum : ResidualSum::in_norm) {}

  LayerTraffic traffic() const;

  /// x (hidden_rows, h): the rows of the hidden states on this rank, whole on return -> act, all that backward reads,
  /// and x_out, which is returned; act may share its memory with the previous layer's. Without x_out only act. Every
  /// function is collective over the tensor-parallel group unless it says otherwise.
  nn::HiddenStates<T> forward(Device& device, const nn::TokenBatch& batch, const nn::HiddenStates<T>& x,
                              const LayerActivations<T>& act, const Workspace<T>& work, Matrix<T> x_out) const;

  /// Recomputes what Recompute::selective does not keep. No communication.
  void recompute_selective(Device& device, Matrix<T> x, const LayerActivations<T>& act) const;

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

 private:
  // dx += gradient of the norm's input; work.dn is the gradient of its output.
  void middle_norm_backward(Device& device, const LayerActivations<T>& act, const Workspace<T>& work,
                            Matrix<T> dx) const;
  void input_norm_backward(Device& device, Matrix<const T> x, const LayerActivations<T>& act, const Workspace<T>& work,
                           Matrix<T> dx) const;

  std::unique_ptr<const nn::Norm<T>> input_norm_;
  std::unique_ptr<const nn::Attention<T>> attention_;
  std::unique_ptr<const nn::Norm<T>> middle_norm_;
  std::unique_ptr<const nn::FeedForward<T>> feed_forward_;
  nn::TensorParallelRegion<T>* tp_region_;
  ResidualSum attention_sum_, feed_forward_sum_;
};

}  // namespace nanotron::model
