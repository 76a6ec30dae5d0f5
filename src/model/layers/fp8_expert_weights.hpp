#pragma once

// The codes of the experts' weights, where experts multiply in FP8 (setup.fp8_experts). Private to model/layers.

#include <vector>

#include "nanotron/model/layers/gemm_recipe.hpp"
#include "nanotron/nn/moe/fp8_experts.hpp"

namespace nanotron::model {

/// Of weights.
inline kernels::Fp8Scaling scaling_of_weights(const TransformerSetup& setup) {
  return setup.fp8_scales == deck::Fp8Scales::blocks ? kernels::Fp8Scaling::blocks : kernels::Fp8Scaling::tensor;
}
inline bool has_routed_codes(const TransformerSetup& setup) { return setup.fp8_experts; }

/// maxima: workspace for the rows, where there is one scale.
void quantise_weight(Device& device, const Matrix<const bf16>& values, const Vector<float>& maxima,
                     const kernels::Fp8Matrix<e4m3>& codes);

class Fp8ExpertWeights {
 public:
  /// As Fp8Weights; shares_codes: the layers share one set.
  Fp8ExpertWeights(const ParameterTable& table, const nn::ParameterBuffers<bf16>& buffers,
                   const TransformerSetup& setup, bool shares_codes, Arena& arena);

  void quantise(Device& device, index_t layer) const;
  void add_to(LayerGemms<bf16>& gemms, index_t layer) const;

 private:
  // One linear layer of every expert.
  struct Linear {
    std::vector<Matrix<const bf16>> values;
    nn::Fp8Experts codes;
  };
  struct Layer {
    Linear gate_up, down;
  };
  std::vector<Layer> layers_;
  Vector<float> maxima_;
};

}  // namespace nanotron::model
