#include "fp8_weights.hpp"

#include <algorithm>

#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::model {
namespace {

using kernels::Fp8Matrix, kernels::fp8_padded, kernels::Fp8ScaleLayout, kernels::Fp8Scaling;

// The first projection of each GEMM, in the order of LayerGemms, and its rows.
struct Gemm {
  nn::ParameterSpec first;
  index_t rows;
};
using Gemms = std::vector<Gemm>;
Gemms gemms_of(const ParameterTable& table) {
  const std::string prefix = "model/layers/self_attn/";
  const nn::ParameterSpec& out = table[prefix + "o_proj/weight"];
  const index_t qkv = table[prefix + "q_proj/weight"].local_rows() + table[prefix + "k_proj/weight"].local_rows() +
                      table[prefix + "v_proj/weight"].local_rows();
  Gemms gemms{{table[prefix + "q_proj/weight"], qkv}, {out, out.local_rows()}};
  if (!table.contains("model/layers/mlp/down_proj/weight")) return gemms;
  const MlpSpecs mlp = table.mlp("model/layers/mlp/");
  gemms.push_back({mlp.first, mlp.first_rows});
  gemms.push_back({mlp.down, mlp.down.local_rows()});
  return gemms;
}

Fp8Matrix<e4m3> take(Arena& arena, index_t out, index_t in, Fp8Scaling scaling) {
  constexpr auto kind = MemoryKind::parameters;
  Fp8Matrix<e4m3> codes{.rows = arena.take<e4m3>(kind, out, fp8_padded(in)),
                        .columns = arena.take<e4m3>(kind, in, fp8_padded(out)),
                        .scaling = scaling};
  codes.scale = arena.take<float>(kind, Fp8ScaleLayout(scaling, out, in).count).data();
  if (scaling != Fp8Scaling::tensor)
    codes.column_scales = arena.take<float>(kind, Fp8ScaleLayout(scaling, in, out).count).data();
  return codes;
}

}  // namespace

void quantise_weight(Device& device, const Matrix<const bf16>& values, const Vector<float>& maxima,
                     const Fp8Matrix<e4m3>& codes) {
  if (codes.scaling != Fp8Scaling::tensor) return kernels::quantise_parts(device, values, codes);
  const Vector<float> of_rows(maxima.data(), values.extent(0));
  kernels::row_maxima<bf16>(device, values, of_rows);
  kernels::quantise<e4m3>(device, values, of_rows, codes);
}

Fp8Weights::Fp8Weights(const ParameterTable& table, const nn::ParameterBuffers<bf16>& buffers,
                       const TransformerSetup& setup, Arena& arena)
    : scaling_(scaling_of_weights(setup)) {
  const Gemms gemms = gemms_of(table);
  held_.assign(setup.sharding.stage == 3 ? 1 : static_cast<std::size_t>(table.layers), no_unit);
  index_t max_rows = 0;
  for (index_t l = 0; l < table.layers; ++l) {
    const bool shares = set_of(l) < static_cast<std::size_t>(l);
    std::vector<Weight>& weights = layers_.emplace_back();
    for (std::size_t i = 0; i < gemms.size(); ++i) {
      const Matrix<const bf16> values = buffers.weight(gemms[i].first, l, gemms[i].rows);
      const auto out = static_cast<index_t>(values.extent(0)), in = static_cast<index_t>(values.extent(1));
      max_rows = std::max(max_rows, out);
      weights.push_back({values, shares ? layers_[0][i].codes : take(arena, out, in, scaling_)});
    }
  }
  if (has_routed_codes(setup)) routed_.emplace(table, buffers, setup, held_.size() == 1, arena);
  maxima_ = arena.take<float>(MemoryKind::workspace, scaling_ == Fp8Scaling::tensor ? max_rows : 0);
}

void Fp8Weights::use(Device& device, index_t layer) {
  if (!reads(layer)) return;
  held_[set_of(layer)] = layer;
  for (const Weight& w : layers_[static_cast<std::size_t>(layer)]) quantise_weight(device, w.values, maxima_, w.codes);
  if (routed_) routed_->quantise(device, layer);
}

LayerGemms<bf16> Fp8Weights::gemms(index_t layer, const nn::Fp8Workspace& work) const {
  const std::vector<Weight>& weights = layers_[static_cast<std::size_t>(layer)];
  const auto of = [&](std::size_t i) -> std::shared_ptr<const nn::LinearGemms<bf16>> {
    const Fp8Matrix<e4m3>& codes = weights[i].codes;
    if (codes.scaling != Fp8Scaling::tensor) return std::make_shared<const nn::Fp8Linear<e4m3>>(codes, work);
    return std::make_shared<const nn::Fp8Linear<e5m2>>(codes, work);
  };
  LayerGemms<bf16> made{.qkv = of(0), .attention_out = of(1)};
  if (weights.size() > 2) made.gate_up = of(2), made.down = of(3);
  if (routed_) routed_->add_to(made, layer);
  return made;
}

}  // namespace nanotron::model
