#pragma once

// How the linear layers of a rank multiply, and the memory for it. GemmRecipe itself multiplies weights and activations
// as stored, without memory. Derived recipes round them to codes first (src/model/layers/fp8_recipe.hpp).

#include <memory>

#include "nanotron/model/layers/transformer_setup.hpp"
#include "nanotron/nn/linear/linear_gemms.hpp"
#include "nanotron/nn/mlp/activation.hpp"
#include "nanotron/nn/moe/expert_codes.hpp"

namespace nanotron::model {

/// The GEMMs of one layer; null if it multiplies the stored operands.
template <class T>
struct LayerGemms {
  std::shared_ptr<const nn::LinearGemms<T>> qkv{}, attention_out{}, gate_up{}, down{};
  std::shared_ptr<const nn::ExpertCodes<T>> expert_gate_up{}, expert_down{};
};

/// The outputs of norms and activation that backward reads as they are stored.
struct KeptOutputs {
  bool input_norm = true, middle_norm = true, hidden = true;
};

template <class T>
class GemmRecipe {
 public:
  virtual ~GemmRecipe() = default;

  // Functions for weights. layer: index among those stored here.

  /// Whether use_weights() reads the layer's weights, or its GEMMs do.
  virtual bool reads_weights(index_t) const { return true; }
  /// Call it before a layer multiplies, when its weights are available.
  virtual void use_weights(Device&, index_t) {}
  /// Call it after every change of the weights.
  virtual void weights_changed() {}

  // Functions for activations: memory from the arena (planning or real) in addition to the tensors themselves.

  virtual KeptOutputs kept_outputs(const LocalSizes&) const { return {}; }
  /// OperandCodes::kept of a layer (MemoryKind::activations), or of all layers, which share them (workspace).
  virtual void take_codes(Arena&, MemoryKind, const LocalSizes&, LayerActivations<T>&) const {}
  /// OperandCodes::maxima, which all layers share.
  virtual void take_maxima(Arena&, const LocalSizes&, LayerActivations<T>&) const {}
  /// What training needs in addition; call it before gemms().
  virtual void take_workspace(Arena&, const LocalSizes&, const ActivationSetup&) {}
  /// Bytes of Device::gemm_workspace() that these GEMMs need.
  virtual std::size_t gemm_workspace_bytes(const LocalSizes&, Processor) const { return 0; }

  // What layers are made from.

  /// The recipe must outlive them.
  virtual LayerGemms<T> gemms(index_t) const { return {}; }
  /// Of a layer.
  virtual std::shared_ptr<const nn::Activation<T>> activation(const nn::ActivationSource<T>& source,
                                                              const ParameterTable&) const {
    return nn::make_activation(source);
  }
};

/// The recipe for setup.operands. Takes the codes of the weights from the arena. buffers' memory must outlive it.
template <class T>
std::unique_ptr<GemmRecipe<T>> make_gemm_recipe(const TransformerSetup& setup, const ParameterTable& table,
                                                const nn::ParameterBuffers<T>& buffers, Arena& arena);

/// What experts with codes need; zero where the recipe has none of them.
nn::ExpertCodeBytes expert_code_bytes(const TransformerSetup& setup, const nn::MoeSizes& sizes, Processor processor);

/// The weights that its GEMMs read.
template <class T>
ComputeWeights compute_weights(const TransformerSetup& setup);

}  // namespace nanotron::model
