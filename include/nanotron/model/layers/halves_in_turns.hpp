#pragma once

// Two micro-batches A and B that go through the layers of a virtual stage in turns, so that the rows of one travel to
// and from the experts while the other one is computed (parallel%ep_overlap):
//
//   forward    A: attention, route   B: attention   A: dispatch   B: route   A: experts   B: dispatch   A: combine
//              B: experts, combine   A: output, attention of the next layer ...
//   backward   A: dispatch   B: dispatch   A: experts, combine, weights   B: experts, combine   A: attention, dispatch
//              of the layer before   B: weights, attention ...
//
// "dispatch" and "combine" start messages, which the next step of the same micro-batch waits for. DeepSeek-AI 2024
// (DeepSeek-V3, section 3.2.1, DualPipe) and Megatron-LM (megatron/core/models/common/model_chunk_schedule_plan.py)
// interleave forward of one micro-batch with backward of another; here both are at the same place, with one layer of
// weights in use and no more activations than one micro-batch of both has. Gradients are added in the order A, B: the
// results are those of A, then B, through Transformer.
//
// A layer whose rows stay in place computes A, then B; so does backward of one with a norm after the experts.

#include <array>

#include "nanotron/model/layers/transformer.hpp"

namespace nanotron::model {

template <class T>
class HalvesInTurns {
 public:
  static constexpr index_t halves = 2;

  /// model, set up with in_turns = 2, must outlive it.
  explicit HalvesInTurns(Transformer<T>& model) : model_(&model) {}

  /// Slot of a half of the pair.
  static Slot half_of(const Slot& pair, index_t half) { return {pair.stage, halves * pair.index + half}; }
  /// The rows of a half in memory of both.
  static Matrix<T> rows_of(const Matrix<T>& both, index_t half);
  /// The hidden states of both before and after the virtual stage.
  Matrix<T> input(const Slot& pair) const { return both(model_->input(half_of(pair, 0))); }
  Matrix<T> output(const Slot& pair) const { return both(model_->output(half_of(pair, 0))); }

  /// As Transformer::forward of both.
  void forward(const Slot& pair);
  /// As Transformer::backward_layer, or backward_layer_input, of a half: call it for layer = layers(stage) - 1, ..., 0,
  /// each for half 0, then 1. dx: of both halves. Gradients are added to those of the layer, except to those of a
  /// 1-D parameter of no other layer.
  void backward_layer(const Slot& pair, index_t layer, index_t half, Matrix<T> dx) {
    backward(pair, layer, half, dx, Backward::whole);
  }
  void backward_layer_input(const Slot& pair, index_t layer, index_t half, Matrix<T> dx) {
    backward(pair, layer, half, dx, Backward::two_parts);
  }

 private:
  static Matrix<T> both(const Matrix<T>& first) {
    return Matrix<T>(first.data(), halves * static_cast<index_t>(first.extent(0)), first.extent(1));
  }
  LayerPass<T> pass_of(const Slot& pair, index_t layer, index_t half) const;
  void use_weights(const Slot& pair, index_t layer) const;
  void finish_forward(const Slot& pair, index_t layer, index_t half);
  void attend_beside_dispatch(const DecoderLayer<T>& layer);
  void route_and_compute(const DecoderLayer<T>& layer);
  void recompute(const Slot& pair, index_t layer);
  void start(const Slot& pair, index_t layer, index_t half, Matrix<T> dx);
  bool has_steps_back(const Slot& pair, index_t layer) const;
  bool starts_early(const Slot& pair, index_t layer) const;
  void backward(const Slot& pair, index_t layer, index_t half, Matrix<T> dx, Backward parts);
  void finish(const Slot& pair, index_t layer, index_t half, Matrix<T> dx, Backward parts);

  Transformer<T>* model_;
  std::array<LayerPass<T>, halves> passes_{};
  index_t started_ = no_unit;  // the layer whose backward half 0 has started
};

}  // namespace nanotron::model
