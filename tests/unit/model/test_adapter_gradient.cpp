// ranks: 1 2 3
// The gradient of adapters beside frozen weights (LoRA) in fp64 against central finite differences of the loss.

#include "unit/model/gradient_check.hpp"

namespace nanotron::model {
namespace {

constexpr deck::TpMode replicated = deck::TpMode::all_reduce, sharded = deck::TpMode::reduce_scatter;

void to_gelu(deck::ModelConfig& m) {
  m.normalization = deck::Normalization::layer_norm;
  m.hidden_act = deck::HiddenAct::gelu;
  m.o_proj_bias = m.mlp_bias = true;
}

void to_side_by_side(deck::ModelConfig& m) { m.parallel_residual = deck::ParallelResidual::two_norms; }

Variant adapted(const char* name, const char* targets, deck::TpMode mode,
                void (*change)(deck::ModelConfig&) = nullptr) {
  Variant v{name, false, true, true, mode};
  v.change = change;
  v.adapted = targets;
  return v;
}

Variant tied(Variant v) {
  v.tied = true;
  return v;
}

INSTANTIATE_TEST_SUITE_P(Adapters, Gradient,
                         testing::Values(adapted("all", "*_proj", replicated), adapted("all_split", "*_proj", sharded),
                                         tied(adapted("query_value", "q_proj,v_proj", replicated)),
                                         tied(adapted("key_up", "k_proj model.layers.mlp.up_proj", sharded)),
                                         adapted("row_parallel", "o_proj down_proj", sharded),
                                         adapted("gelu", "*_proj", replicated, to_gelu),
                                         adapted("side_by_side", "mlp.*_proj", sharded, to_side_by_side)),
                         [](const auto& variant) { return std::string(variant.param.name); });

}  // namespace
}  // namespace nanotron::model
