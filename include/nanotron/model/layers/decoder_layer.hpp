#pragma once

// One decoder layer: attention and a feed-forward network, each a block whose output is added to the hidden states. Its
// kinds (model/parameters/layer_layout.hpp): one block after the other, or both from the same hidden states.

#include <memory>

#include "nanotron/model/layers/activations.hpp"

namespace nanotron::model {

/// Bytes that a layer, or a virtual stage, moves per micro-batch: forward; what recompute = 'full' does again; whole
/// backward, or its two parts.
struct LayerTraffic {
  comm::StepTraffic forward{}, recompute{}, backward{}, backward_input{}, backward_weight{};
  comm::StepTraffic again{};  // in backward, of a layer that does not recompute
};

/// What adds x to a block's output: the block's last GEMM if it computes the whole output, one pass less; or the norm
/// after it, which for the last block is in the next layer (nn::HiddenStates).
enum class ResidualSum { in_gemm, in_norm };

/// One of several micro-batches that take the steps of a layer in turns: x on entry, x_out; the gradient of the
/// feed-forward network's output, all tokens, from backward_start to backward_rows.
template <class T>
struct LayerPass {
  const nn::TokenBatch* batch = nullptr;
  nn::HiddenStates<T> x{};
  const LayerActivations<T>* act = nullptr;
  const Workspace<T>* work = nullptr;
  Matrix<T> x_out{};
  Matrix<const T> dy{};
};

template <class T>
class DecoderLayer {
 public:
  virtual ~DecoderLayer() = default;

  virtual LayerTraffic traffic() const = 0;

  /// x (hidden_rows, h): the rows of the hidden states on this rank, whole on return -> act, all that backward reads,
  /// and x_out, which is returned; act may share its memory with the previous layer's. Every function is collective
  /// over the tensor-parallel group unless it says otherwise.
  virtual nn::HiddenStates<T> forward(Device& device, const nn::TokenBatch& batch, const nn::HiddenStates<T>& x,
                                      const LayerActivations<T>& act, const Workspace<T>& work,
                                      Matrix<T> x_out) const = 0;

  /// Recomputes act, as Recompute::full needs. x_out may be overwritten, by the same values.
  virtual void recompute(Device& device, const nn::TokenBatch& batch, Matrix<T> x, const LayerActivations<T>& act,
                         const Workspace<T>& work, Matrix<T> x_out) const = 0;
  /// Recomputes what Recompute::selective does not keep. No communication.
  virtual void recompute_selective(Device& device, Matrix<T> x, const LayerActivations<T>& act) const = 0;

  /// dx (hidden_rows, h): gradient of x_out on entry, of x on return. Weight gradients are accumulated.
  virtual void backward(Device& device, const nn::TokenBatch& batch, Matrix<const T> x, const LayerActivations<T>& act,
                        const Workspace<T>& work, Matrix<T> dx) const = 0;

  /// The same in two parts (Qi et al. 2023): first the gradients of x, of the norms and of the activation; the weight
  /// gradients of the GEMMs at any time after it. The first part overwrites activations, and perhaps x_out, with what
  /// the second one reads.
  virtual void backward_input(Device& device, const nn::TokenBatch& batch, Matrix<const T> x,
                              const LayerActivations<T>& act, const Workspace<T>& work, Matrix<T> x_out,
                              Matrix<T> dx) const = 0;
  virtual void backward_weight(Device& device, Matrix<const T> x, const LayerActivations<T>& act,
                               const Workspace<T>& work, Matrix<const T> x_out) const = 0;
  /// Whether backward_weight reads the weights: it computes a part of forward once more.
  virtual bool reads_weights_later() const = 0;

  /// Whether rows travel between ranks in the steps below, which together equal the functions above: those of `forward`
  /// and, after backward_start, of backward or backward_input. After each step rows may be in flight until the next one
  /// of the same micro-batch, beside steps of another one, which has a workspace of its own.
  virtual bool has_steps() const = 0;
  virtual void forward_attention(Device& device, const LayerPass<T>& pass) const = 0;
  virtual void forward_route(Device& device, const LayerPass<T>& pass) const = 0;
  virtual void forward_dispatch(Device& device, const LayerPass<T>& pass) const = 0;
  virtual void forward_rows(Device& device, const LayerPass<T>& pass) const = 0;
  virtual void start_output(Device& device, const LayerPass<T>& pass) const = 0;
  virtual nn::HiddenStates<T> finish_output(Device& device, const LayerPass<T>& pass) const = 0;
  /// Whether recompute() includes the last two, as a norm after the feed-forward network needs.
  virtual bool recomputes_output() const = 0;

  virtual void backward_start(Device& device, LayerPass<T>& pass, Matrix<T> dx) const = 0;
  virtual void backward_rows(Device& device, const LayerPass<T>& pass) const = 0;
  virtual void backward_rows_weight(Device& device, const LayerPass<T>& pass) const = 0;
  virtual void backward_finish(Device& device, const LayerPass<T>& pass, Matrix<T> dx) const = 0;
  virtual void backward_input_finish(Device& device, const LayerPass<T>& pass, Matrix<T> dx) const = 0;

  /// Call it once before the first step, while the memory is zero, see nn::FeedForward.
  virtual void prepare(Device& device, const LayerActivations<T>& act, const Workspace<T>& work) const = 0;
};

/// Norms of a block's input, perhaps made by nn::make_no_norm, and of its output; null where there is none.
template <class T>
struct BlockNorms {
  std::unique_ptr<const nn::Norm<T>> input{}, output{};
};

/// What a layer is made from.
template <class T>
struct LayerParts {
  BlockNorms<T> attention_norms{};
  std::unique_ptr<const nn::Attention<T>> attention{};
  BlockNorms<T> mlp_norms{};
  std::unique_ptr<const nn::FeedForward<T>> feed_forward{};
  double multiplier = 1.0;                           // of the blocks' outputs
  kernels::RandomMask attention_mask{}, mlp_mask{};  // of the outputs
  ResidualSum sum = ResidualSum::in_norm;
};

/// region must outlive it.
template <class T>
std::unique_ptr<const DecoderLayer<T>> make_decoder_layer(const LayerLayout& layout, LayerParts<T> parts,
                                                          nn::TensorParallelRegion<T>& region);

}  // namespace nanotron::model
