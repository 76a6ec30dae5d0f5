#pragma once

// FP8: q | k | v, attention's output, and the two GEMMs of a dense network multiply codes of weights, inputs and
// gradients (nn/linear/fp8_linear.hpp). Embedding, head, router and experts stay in bf16.
//
// recompute = 'none' keeps codes, of one byte, of n1, n2, attn and mlp_hidden (model/layers/activations.hpp) instead of
// n1, n2 and mlp_hidden. 'selective', and sequence-parallel hidden states for n1 and n2, keep no codes: backward
// quantises again. With experts n2 and mlp_hidden are kept as they are. Private to model/layers.
//
// With scales of parts (precision%fp8_scales = 'blocks') nobody needs maxima of rows, and the gradient of SwiGLU is
// stored.

#include <optional>

#include "fp8_weights.hpp"
#include "nanotron/model/layers/gemm_recipe.hpp"

namespace nanotron::model {

class Fp8Recipe final : public GemmRecipe<bf16> {
 public:
  Fp8Recipe(const TransformerSetup& setup, const ParameterTable& table, const nn::ParameterBuffers<bf16>& buffers,
            Arena& arena)
      : scaling_(setup.fp8_scales == deck::Fp8Scales::blocks ? kernels::Fp8Scaling::tiles
                                                             : kernels::Fp8Scaling::tensor),
        weights_(table, buffers, setup, arena) {}

  bool reads_weights(index_t layer) const override { return weights_.reads(layer); }
  void use_weights(Device& device, index_t layer) override { weights_.use(device, layer); }
  void weights_changed() override { weights_.expire(); }

  KeptOutputs kept_outputs(const LocalSizes& sizes) const override;
  void take_codes(Arena& arena, MemoryKind kind, const LocalSizes& sizes, LayerActivations<bf16>& act) const override;
  void take_maxima(Arena& arena, const LocalSizes& sizes, LayerActivations<bf16>& act) const override;
  void take_workspace(Arena& arena, const LocalSizes& sizes, const ActivationSetup& setup) override;
  std::size_t gemm_workspace_bytes(const LocalSizes& sizes, Processor processor) const override;

  LayerGemms<bf16> gemms(index_t layer) const override { return weights_.gemms(layer, work_); }
  std::shared_ptr<const nn::Activation<bf16>> activation(const nn::ActivationSource<bf16>& source,
                                                         const ParameterTable& table) const override;

 private:
  bool has_parts() const { return scaling_ != kernels::Fp8Scaling::tensor; }

  kernels::Fp8Scaling scaling_;  // of inputs and gradients
  Fp8Weights weights_;
  std::optional<nn::Fp8Chunks> chunks_;
  nn::Fp8Workspace work_{};
};

}  // namespace nanotron::model
