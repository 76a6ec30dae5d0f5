#pragma once

// The codes of the weights of a rank's layers, where linear layers multiply in FP8: quantised from the weights in bf16
// when a layer is used for the first time after they changed. With ZeRO-3 the layers share one set of codes, as they
// share the slots of gathered weights, and each use of another layer quantises again.
//
// Private to model/layers.

#include <algorithm>
#include <optional>
#include <vector>

#include "fp8_expert_weights.hpp"
#include "nanotron/nn/linear/fp8_linear.hpp"

namespace nanotron::model {

class Fp8Weights {
 public:
  /// Takes the codes from the arena (planning or real). buffers' memory must outlive it.
  Fp8Weights(const ParameterTable& table, const nn::ParameterBuffers<bf16>& buffers, const TransformerSetup& setup,
             Arena& arena);

  /// Whether use() reads the weights of the layer.
  bool reads(index_t layer) const { return held_[set_of(layer)] != layer; }
  /// The weights changed.
  void expire() { std::fill(held_.begin(), held_.end(), no_unit); }
  /// Call it before a layer multiplies, when its weights are available. layer: index among those stored here.
  void use(Device& device, index_t layer);

  LayerGemms<bf16> gemms(index_t layer, const nn::Fp8Workspace& work) const;

 private:
  struct Weight {
    Matrix<const bf16> values;  // (out, in)
    kernels::Fp8Matrix<e4m3> codes;
  };
  std::size_t set_of(index_t layer) const { return held_.size() == 1 ? 0 : static_cast<std::size_t>(layer); }

  kernels::Fp8Scaling scaling_;
  std::vector<std::vector<Weight>> layers_;
  std::optional<Fp8ExpertWeights> routed_;
  std::vector<index_t> held_;  // by set of codes: its layer, or no_unit
  Vector<float> maxima_;
};

}  // namespace nanotron::model
