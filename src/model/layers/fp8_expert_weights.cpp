#include "fp8_expert_weights.hpp"

#include <algorithm>

namespace nanotron::model {

Fp8ExpertWeights::Fp8ExpertWeights(const ParameterTable& table, const nn::ParameterBuffers<bf16>& buffers,
                                   const TransformerSetup& setup, bool shares_codes, Arena& arena) {
  const kernels::Fp8Scaling scaling = scaling_of_weights(setup);
  index_t max_rows = 0;
  const auto finish = [&](Linear& linear, const Linear* shared) {
    const auto out = static_cast<index_t>(linear.values[0].extent(0)),
               in = static_cast<index_t>(linear.values[0].extent(1));
    max_rows = std::max(max_rows, out);
    linear.codes = shared != nullptr
                       ? shared->codes
                       : nn::take_fp8_experts(arena, static_cast<index_t>(linear.values.size()), out, in, scaling);
  };
  for (index_t l = 0; l < table.layers; ++l) {
    Layer layer;
    for (index_t e = table.experts.begin; e < table.experts.end; ++e) {
      const MlpSpecs specs = table.expert(e);
      layer.gate_up.values.push_back(buffers.weight(specs.first, l, specs.first_rows));
      layer.down.values.push_back(buffers.weight(specs.down, l, specs.down.local_rows()));
    }
    const Layer* const shared = shares_codes && l > 0 ? &layers_.front() : nullptr;
    finish(layer.gate_up, shared != nullptr ? &shared->gate_up : nullptr);
    finish(layer.down, shared != nullptr ? &shared->down : nullptr);
    layers_.push_back(std::move(layer));
  }
  maxima_ = arena.take<float>(MemoryKind::workspace, scaling == kernels::Fp8Scaling::tensor ? max_rows : 0);
}

void Fp8ExpertWeights::quantise(Device& device, index_t layer) const {
  const Layer& of = layers_[static_cast<std::size_t>(layer)];
  for (const Linear* linear : {&of.gate_up, &of.down}) {
    for (std::size_t e = 0; e < linear->values.size(); ++e)
      quantise_weight(device, linear->values[e], maxima_, linear->codes[static_cast<index_t>(e)]);
  }
}

void Fp8ExpertWeights::add_to(LayerGemms<bf16>& gemms, index_t layer) const {
  const Layer& of = layers_[static_cast<std::size_t>(layer)];
  gemms.expert_gate_up = nn::make_fp8_experts(of.gate_up.codes);
  gemms.expert_down = nn::make_fp8_experts(of.down.codes);
}

}  // namespace nanotron::model
