#include "nanotron/model/layers/activations.hpp"

#include <algorithm>

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/norm/norm.hpp"

namespace nanotron::model {
namespace {

constexpr auto kept = MemoryKind::activations;
constexpr auto shared = MemoryKind::workspace;

// All-to-all attention (core.rows > 0) keeps all_qkv, of all tokens, and not qkv, unless backward is in two parts.
bool keeps_qkv(const LocalSizes& s, Backward backward) { return s.core.rows == 0 || backward == Backward::two_parts; }

// What 'selective' recomputes besides the norms, of a dense network or the shared expert.
template <class T>
void take_hidden(Arena& arena, MemoryKind kind, const LocalSizes& s, LayerActivations<T>& act) {
  act.feed_forward.mlp.hidden = arena.take<T>(kind, s.tokens, s.intermediate);
}

bool is_dense(const LocalSizes& s) { return s.moe.experts == 0; }

nn::Fp8Columns<e4m3> take_columns(Arena& arena, MemoryKind kind, const nn::TokenChunks& chunks, index_t width) {
  return {arena.take<e4m3>(kind, width * chunks.padded_tokens()), arena.take<float>(kind, chunks.size())};
}

// Codes of the inputs of linear layers that wait for backward; of hidden, which 'full' does not multiply again, only
// where they are kept.
template <class T>
void take_codes(Arena& arena, MemoryKind kind, const LocalSizes& s, LayerActivations<T>& act) {
  if (s.fp8_chunks == nullptr) return;
  const auto columns = [&](index_t width) { return take_columns(arena, kind, *s.fp8_chunks, width); };
  if (!s.is_sharded) act.attention.of_input.kept = columns(s.hidden);
  act.attention.of_out.kept = columns(s.query);
  if (!is_dense(s)) return;
  if (!s.is_sharded) act.feed_forward.mlp.of_input.kept = columns(s.hidden);
  if (kind == kept) act.feed_forward.mlp.of_hidden.kept = columns(s.intermediate);
}

// Maxima of rows, from the kernel that writes a tensor to the one that quantises it. The rows of the norms are those of
// all tokens only where hidden states are replicated.
template <class T>
void take_maxima(Arena& arena, const LocalSizes& s, LayerActivations<T>& act) {
  if (s.fp8_chunks == nullptr) return;
  if (!s.is_sharded) act.attention.of_input.maxima = arena.take<float>(shared, s.tokens);
  if (!is_dense(s)) return;
  nn::MlpActivations<T>& mlp = act.feed_forward.mlp;
  mlp.of_input.maxima = act.attention.of_input.maxima;
  mlp.of_hidden.maxima = mlp.gradient_maxima = arena.take<float>(shared, s.tokens);
}

// What only 'full' recomputes.
template <class T>
void take_full(Arena& arena, MemoryKind kind, const LocalSizes& s, Backward backward, LayerActivations<T>& act) {
  using M = master_t<T>;
  act.input_norm_kept = arena.take<T>(kind, s.kept_inputs, s.hidden);
  act.middle_norm_kept = arena.take<T>(kind, s.kept_inputs, s.hidden);
  act.input_statistics = arena.take<M>(kind, s.hidden_rows * s.norm.statistics);
  if (keeps_qkv(s, backward)) act.attention.qkv = arena.take<T>(kind, s.tokens, s.query + 2 * s.key);
  act.attention.all_qkv = arena.take<T>(kind, s.core.rows, s.core.qkv_columns);
  act.attention.all_out = arena.take<T>(kind, s.core.rows, s.core.out_columns);
  if (s.qk_norm) {
    act.attention.raw_qk = arena.take<T>(kind, s.tokens, s.query + s.key);
    act.attention.query_rstd = arena.take<M>(kind, s.tokens, s.query_heads);
    act.attention.key_rstd = arena.take<M>(kind, s.tokens, s.key_heads);
  }
  act.attention.out = arena.take<T>(kind, s.tokens, s.query);
  act.attention.lse = arena.take<M>(kind, s.core.lse);
  act.middle = arena.take<T>(kind, s.hidden_rows, s.hidden);
  act.middle_statistics = arena.take<M>(kind, s.hidden_rows * s.norm.statistics);
  act.feed_forward.mlp.gate_up = arena.take<T>(kind, s.tokens, s.gate_up);
  nn::take_full(arena, kind, s.moe, s.ep_size, act.feed_forward.moe);
  if (backward == Backward::two_parts) nn::take_doutput(arena, kind, s.moe, act.feed_forward.moe);
}

// Outputs of the norms for this rank's rows. Where gathered inputs are kept they are used only until the gather, and
// where FP8 codes are kept only until they are quantised.
struct NormKinds {
  MemoryKind input, middle;
};
NormKinds norm_kinds(const LocalSizes& s, const ActivationSetup& setup) {
  if (setup.recompute != deck::Recompute::none || s.kept_inputs > 0) return {shared, shared};
  if (s.fp8_chunks == nullptr || s.is_sharded) return {kept, kept};
  return {shared, is_dense(s) ? shared : kept};
}
MemoryKind hidden_kind(const LocalSizes& s, const ActivationSetup& setup) {
  if (setup.recompute != deck::Recompute::none) return shared;
  return s.fp8_chunks != nullptr && is_dense(s) ? shared : kept;
}

// Activations that all layers share.
template <class T>
LayerActivations<T> take_common(Arena& arena, const LocalSizes& s, const ActivationSetup& setup) {
  LayerActivations<T> common;
  if (!keeps_qkv(s, setup.backward)) common.attention.qkv = arena.take<T>(shared, s.tokens, s.query + 2 * s.key);
  if (setup.backward == Backward::whole && setup.purpose == Purpose::training) {
    nn::take_doutput(arena, shared, s.moe, common.feed_forward.moe);
  }
  const NormKinds norms = norm_kinds(s, setup);
  if (norms.input == shared) common.input_norm = arena.take<T>(shared, s.hidden_rows, s.hidden);
  if (norms.middle == shared) common.middle_norm = arena.take<T>(shared, s.hidden_rows, s.hidden);
  if (hidden_kind(s, setup) == shared) take_hidden(arena, shared, s, common);
  if (setup.recompute != deck::Recompute::none) nn::take_selective(arena, shared, s.moe, common.feed_forward.moe);
  if (setup.recompute == deck::Recompute::full) {
    take_full(arena, shared, s, setup.backward, common);
    take_codes(arena, shared, s, common);
  }
  take_maxima(arena, s, common);
  return common;
}

template <class T>
StageActivations<T> take_stage(Arena& arena, const LocalSizes& s, index_t layers, const ActivationSetup& setup,
                               const LayerActivations<T>& common) {
  StageActivations<T> stage;
  stage.layers.assign(static_cast<std::size_t>(layers), common);
  for (LayerActivations<T>& act : stage.layers) {
    const NormKinds norms = norm_kinds(s, setup);
    if (norms.input == kept) act.input_norm = arena.take<T>(kept, s.hidden_rows, s.hidden);
    if (norms.middle == kept) act.middle_norm = arena.take<T>(kept, s.hidden_rows, s.hidden);
    if (hidden_kind(s, setup) == kept) take_hidden(arena, kept, s, act);
    if (setup.recompute == deck::Recompute::none) {
      nn::take_selective(arena, kept, s.moe, act.feed_forward.moe);
      take_codes(arena, kept, s, act);
    }
    if (setup.recompute != deck::Recompute::full) take_full(arena, kept, s, setup.backward, act);
  }
  for (index_t l = 0; l <= layers; ++l) stage.residual.push_back(arena.take<T>(kept, s.hidden_rows, s.hidden));
  return stage;
}

template <class T>
std::vector<std::vector<StageActivations<T>>> take_stages(Arena& arena, const LocalSizes& s,
                                                          const ActivationSetup& setup) {
  const LayerActivations<T> common = take_common<T>(arena, s, setup);
  std::vector<std::vector<StageActivations<T>>> stages;
  for (const VirtualStage& stage : setup.stages) {
    auto& slots = stages.emplace_back();
    for (index_t i = 0; i < stage.slots; ++i) {
      slots.push_back(take_stage<T>(arena, s, stage.layers.size(), setup, common));
    }
  }
  return stages;
}

nn::Fp8Workspace take_fp8(Arena& arena, const LocalSizes& s, const ActivationSetup& setup) {
  if (s.fp8_chunks == nullptr) return {};
  const nn::TokenChunks& chunks = *s.fp8_chunks;
  const index_t mlp = is_dense(s) ? s.intermediate : 0, gate_up = is_dense(s) ? s.gate_up : 0;
  const index_t gradient = std::max({s.hidden, s.query + 2 * s.key, gate_up}),
                input = std::max({s.hidden, s.query, mlp});
  const index_t rows = chunks.longest() * kernels::fp8_padded(std::max(gradient, input));
  const bool again = setup.recompute != deck::Recompute::none || s.is_sharded;
  return {.chunks = s.fp8_chunks,
          .gradients = setup.backward == Backward::two_parts ? nn::Fp8Gradients::quantised_again
                                                             : nn::Fp8Gradients::of_input_gradient,
          .rows = arena.take<std::byte>(shared, rows),
          .input = again ? take_columns(arena, shared, chunks, input) : nn::Fp8Columns<e4m3>{},
          .gradient = {arena.take<e5m2>(shared, gradient * chunks.padded_tokens()),
                       arena.take<float>(shared, chunks.size())},
          .maxima = arena.take<float>(shared, s.tokens),
          .scale = arena.take<float>(shared, 1)};
}

template <class T>
Workspace<T> take_workspace(Arena& arena, const LocalSizes& s, const ActivationSetup& setup) {
  using M = master_t<T>;
  Workspace<T> work;
  work.attention.tiles = arena.take<std::byte>(shared, static_cast<index_t>(s.core.tile_bytes));
  nn::take_forward(arena, s.moe, work.feed_forward.moe);
  if (setup.purpose == Purpose::inference) return work;
  nn::take_backward(arena, s.moe, work.feed_forward.moe);
  for (index_t i = 0; i < setup.hidden_gradients; ++i)
    work.dx.push_back(arena.take<T>(shared, s.hidden_rows, s.hidden));
  work.dn = arena.take<T>(shared, s.hidden_rows, s.hidden);
  work.feed_forward.dhidden = arena.take<T>(shared, s.tokens, s.intermediate);
  const index_t head_dim = s.query / s.query_heads;
  const Processor processor = arena.processor();
  work.sums = arena.take<M>(
      shared, std::max({s.norm.workspace,
                        kernels::rms_norm_workspace_size(processor, s.tokens * s.query_heads, head_dim,
                                                         s.token_segments * s.head_segments),
                        kernels::bias_workspace_size(processor, s.tokens, s.query + 2 * s.key, s.token_segments),
                        kernels::bias_workspace_size(processor, s.tokens, s.biases, s.token_segments)}));
  work.attention.dqkv = arena.take<T>(shared, s.tokens, s.query + 2 * s.key);
  work.attention.dout = arena.take<T>(shared, s.tokens, s.query);
  work.attention.sums = work.feed_forward.sums = work.sums;
  work.fp8 = take_fp8(arena, s, setup);
  return work;
}

index_t widest_bias(const deck::ModelConfig& model, const ParameterTable& table) {
  if (model.mlp_bias)
    return std::max<index_t>(model.hidden_size, (model.is_gated() ? 2 : 1) * table.intermediate.size());
  return model.o_proj_bias ? model.hidden_size : 0;
}

}  // namespace

LocalSizes local_sizes(const deck::ModelConfig& model, const ParameterTable& table, index_t tokens,
                       index_t hidden_rows) {
  return {.tokens = tokens,
          .hidden_rows = hidden_rows,
          .hidden = model.hidden_size,
          .query = table.heads.query.size() * model.head_dim,
          .key = table.heads.key.size() * model.head_dim,
          .query_heads = table.heads.query.size(),
          .key_heads = table.heads.key.size(),
          .intermediate = table.intermediate.size(),
          .vocabulary = table.vocabulary.size(),
          .layers = table["model/layers/input_layernorm/weight"].local_layers(),
          .gate_up = (model.is_gated() ? 2 : 1) * table.intermediate.size(),
          .biases = widest_bias(model, table),
          .qk_norm = model.qk_norm};
}

template <class T>
LayerActivations<T> first_tokens(const LayerActivations<T>& act, index_t tokens) {
  const auto rows = [&](const auto& m) {
    using View = std::decay_t<decltype(m)>;
    return m.extent(0) == 0 ? View{} : View(m.data(), tokens, m.extent(1));
  };
  LayerActivations<T> first = act;
  first.input_norm = rows(act.input_norm);
  first.attention.qkv = rows(act.attention.qkv);
  first.attention.raw_qk = rows(act.attention.raw_qk);
  first.attention.query_rstd = rows(act.attention.query_rstd);
  first.attention.key_rstd = rows(act.attention.key_rstd);
  first.attention.out = rows(act.attention.out);
  first.middle = rows(act.middle);
  first.middle_norm = rows(act.middle_norm);
  nn::MlpActivations<T>& mlp = first.feed_forward.mlp;
  mlp.gate_up = rows(mlp.gate_up);
  mlp.hidden = rows(mlp.hidden);
  return first;
}

template <class T>
Activations<T>::Activations(Arena& arena, const LocalSizes& s, const ActivationSetup& setup)
    : stages(take_stages<T>(arena, s, setup)),
      final_norm(arena.take<T>(shared, setup.has_head ? s.hidden_rows : 0, s.hidden)),
      final_statistics(arena.take<M>(shared, setup.has_head ? s.hidden_rows * s.norm.statistics : 0)),
      loss(arena, setup.has_head ? s.tokens : 0, s.vocabulary, s.loss_width),
      work(take_workspace<T>(arena, s, setup)) {}

#define NANOTRON_INSTANTIATE(T) template LayerActivations<T> first_tokens(const LayerActivations<T>&, index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
NANOTRON_INSTANTIATE_CLASS(Activations)

}  // namespace nanotron::model
