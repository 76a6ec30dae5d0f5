#include "nanotron/model/layers/activations.hpp"

#include <algorithm>
#include <span>

#include "attention_blocks.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/norm/norm.hpp"
#include "nanotron/model/layers/gemm_recipe.hpp"
#include "offloaded_layers.hpp"

namespace nanotron::model {
namespace {

// What the kinds of blocks allocate.
template <class T>
struct Blocks {
  const AttentionBlocks<T>& attention;
  const LayerNetworks<T>& feed_forward;
};

constexpr auto kept = MemoryKind::activations;
constexpr auto shared = MemoryKind::workspace;

// All-to-all attention (core.rows > 0) keeps all_qkv, of all tokens, and not qkv, unless backward is in two parts.
bool keeps_qkv(const LocalSizes& s, Backward backward) { return s.core.rows == 0 || backward == Backward::two_parts; }

// What only 'full' recomputes, of the feed-forward network.
template <class T>
void take_full(Arena& arena, MemoryKind kind, Backward backward, const FeedForwardParts<T>& parts,
               nn::FeedForwardActivations<T>& act) {
  parts.take_full(arena, kind, act);
  if (backward == Backward::two_parts) parts.take_doutput(arena, kind, act);
}

// The outputs of the norms before the blocks.
template <class T>
void take_norms(Arena& arena, MemoryKind kind, const LocalSizes& s, bool input, bool middle, LayerActivations<T>& act) {
  if (!s.layout.has_input_norms()) return;
  if (input) act.input_norm = arena.take<T>(kind, s.hidden_rows, s.hidden);
  if (s.layout.shares_input()) {
    act.middle_norm = act.input_norm;
  } else if (middle) {
    act.middle_norm = arena.take<T>(kind, s.hidden_rows, s.hidden);
  }
}

// What norms after the blocks read, which are their outputs, and write.
template <class T>
void take_outputs(Arena& arena, MemoryKind kind, const LocalSizes& s, LayerActivations<T>& act) {
  using M = master_t<T>;
  if (!s.layout.has_output_norms()) return;
  for (BlockOutput<T>* of : {&act.attention_output, &act.mlp_output}) {
    of->y = arena.take<T>(kind, s.hidden_rows, s.hidden);
    of->statistics = arena.take<M>(kind, s.hidden_rows * s.norm.statistics);
  }
}

// Where blocks write an output that has a factor, and backward its gradient. In two parts backward keeps that of each
// layer; else both blocks of all layers share it.
template <class T>
void take_multiplied(Arena& arena, MemoryKind kind, const LocalSizes& s, LayerActivations<T>& act) {
  if (!s.layout.multiplies_outputs()) return;
  act.attention_output.y = act.mlp_output.y = arena.take<T>(kind, s.hidden_rows, s.hidden);
  if (kind == kept) act.mlp_output.y = arena.take<T>(kind, s.hidden_rows, s.hidden);
}

// The same of the rest of a layer.
template <class T>
void take_full(Arena& arena, MemoryKind kind, const LocalSizes& s, Backward backward, const Blocks<T>& blocks,
               LayerActivations<T>& act) {
  using M = master_t<T>;
  const bool keeps_input = blocks.attention.keeps_gathered_input();
  if (keeps_input) act.input_norm_kept = arena.take<T>(kind, s.kept_inputs, s.hidden);
  act.middle_norm_kept =
      s.layout.shares_input() && keeps_input ? act.input_norm_kept : arena.take<T>(kind, s.kept_inputs, s.hidden);
  const index_t statistics = s.layout.has_input_norms() ? s.hidden_rows * s.norm.statistics : 0;
  act.input_statistics = arena.take<M>(kind, statistics);
  if (keeps_qkv(s, backward)) act.attention.qkv = arena.take<T>(kind, s.tokens, s.query + 2 * s.key);
  act.attention.all_qkv = arena.take<T>(kind, s.core.rows, s.core.qkv_columns);
  act.attention.all_out = arena.take<T>(kind, s.core.rows, s.core.out_columns);
  if (s.qk_norm) {
    act.attention.raw_qk = arena.take<T>(kind, s.tokens, s.query + s.key);
    act.attention.query_rstd = arena.take<M>(kind, s.tokens, s.query_norms);
    act.attention.key_rstd = arena.take<M>(kind, s.tokens, s.key_norms);
  }
  act.attention.out = arena.take<T>(kind, s.tokens, s.query);
  act.attention.lse = arena.take<M>(kind, s.core.lse);
  blocks.attention.take_full(arena, kind, act.attention);
  if (!s.layout.is_parallel) act.middle = arena.take<T>(kind, s.hidden_rows, s.hidden);
  act.middle_statistics = arena.take<M>(kind, s.layout.shares_input() ? 0 : statistics);
  take_outputs(arena, kind, s, act);
}

// The outputs that each layer keeps. Where gathered inputs are kept, those of the norms are used only until the gather.
template <class T>
KeptOutputs kept_outputs(const LocalSizes& s, deck::Recompute recompute, const KeptOutputs& read,
                         const AttentionBlocks<T>& attention) {
  if (recompute != deck::Recompute::none) return {false, false, false};
  if (s.kept_inputs > 0) return {read.input_norm && !attention.keeps_gathered_input(), false, read.hidden};
  return read;
}

// Activations that all layers share, or those of them that recompute.
template <class T>
LayerActivations<T> take_common(Arena& arena, const LocalSizes& s, const ActivationSetup& setup,
                                const GemmRecipe<T>& recipe, const Blocks<T>& blocks) {
  LayerActivations<T> common;
  if (!keeps_qkv(s, setup.backward)) common.attention.qkv = arena.take<T>(shared, s.tokens, s.query + 2 * s.key);
  const deck::Recompute recompute = setup.any_recompute();
  const KeptOutputs keeps = kept_outputs<T>(s, recompute, recipe.kept_outputs(s), blocks.attention);
  take_norms(arena, shared, s, !keeps.input_norm, !keeps.middle_norm, common);
  if (s.layout.is_parallel) common.middle = arena.take<T>(shared, s.hidden_rows, s.hidden);
  if (setup.backward == Backward::whole) take_multiplied(arena, shared, s, common);
  if (recompute == deck::Recompute::full) {
    take_full(arena, shared, s, setup.backward, blocks, common);
    recipe.take_codes(arena, shared, s, common);
  }
  recipe.take_maxima(arena, s, common);
  return common;
}

// The same of feed-forward networks, per kind. so_far: what is common to all kinds.
template <class T>
std::vector<nn::FeedForwardActivations<T>> take_common_networks(Arena& arena, const ActivationSetup& setup,
                                                                bool keeps_hidden, const LayerNetworks<T>& networks,
                                                                const nn::FeedForwardActivations<T>& so_far) {
  std::vector<nn::FeedForwardActivations<T>> common;
  for (const auto& parts : networks.kinds()) {
    nn::FeedForwardActivations<T>& act = common.emplace_back(so_far);
    if (setup.backward == Backward::whole && setup.purpose == Purpose::training)
      parts->take_doutput(arena, shared, act);
    if (!keeps_hidden) parts->take_hidden(arena, shared, act);
    if (setup.any_recompute() != deck::Recompute::none) parts->take_selective(arena, shared, act);
    if (setup.any_recompute() == deck::Recompute::full) take_full<T>(arena, shared, setup.backward, *parts, act);
  }
  return common;
}

template <class T>
struct CommonActivations {
  LayerActivations<T> layer;
  std::vector<nn::FeedForwardActivations<T>> networks;  // of each kind
};

// Takes the activations of layers.
template <class T>
struct LayerTaker {
  const LocalSizes& s;
  const ActivationSetup& setup;
  const GemmRecipe<T>& recipe;
  const Blocks<T>& blocks;
  const CommonActivations<T>& common;

  // l: of those stored here; number: in the model.
  LayerActivations<T> layer(Arena& arena, index_t l, index_t number) const {
    LayerActivations<T> act = common.layer;
    const FeedForwardParts<T>& parts = blocks.feed_forward[l];
    const deck::Recompute recompute = setup.recompute.of(number);
    const KeptOutputs keeps = kept_outputs<T>(s, recompute, recipe.kept_outputs(s), blocks.attention);
    act.feed_forward = common.networks[blocks.feed_forward.kind_of(l)];
    take_norms(arena, kept, s, keeps.input_norm, keeps.middle_norm, act);
    if (keeps.hidden) parts.take_hidden(arena, kept, act.feed_forward);
    if (setup.backward == Backward::two_parts) take_multiplied(arena, kept, s, act);
    if (recompute == deck::Recompute::none) {
      parts.take_selective(arena, kept, act.feed_forward);
      recipe.take_codes(arena, kept, s, act);
    }
    if (recompute == deck::Recompute::full) return act;
    take_full(arena, kept, s, setup.backward, blocks, act);
    take_full<T>(arena, kept, setup.backward, parts, act.feed_forward);
    return act;
  }
  Matrix<T> residual(Arena& arena) const { return arena.take<T>(kept, s.hidden_rows, s.hidden); }

  // The activations of an offloaded layer, and its input if the layer before it is one of the same stage.
  std::pair<LayerActivations<T>, Matrix<T>> offloaded(Arena& arena, index_t l, index_t number, bool is_first) const {
    LayerActivations<T> act = layer(arena, l, number);
    return {act, is_first ? Matrix<T>() : residual(arena)};
  }
};

// The hidden states before and after a virtual stage.
template <class T>
struct StageEnds {
  Matrix<T> first, last;
};

// layers: stored here, counted from the first one.
template <class T>
StageActivations<T> take_stage(Arena& arena, const LayerTaker<T>& take, const Range& layers, index_t stage,
                               const VirtualStage& of, const OffloadedLayers& offloaded, const StageEnds<T>& ends) {
  StageActivations<T> act;
  act.residual.resize(static_cast<std::size_t>(layers.size() + 1));
  for (index_t i = 0; i < layers.size(); ++i) {
    const index_t l = layers.begin + i, number = of.layers.begin + i;
    if (i < offloaded.layers(stage)) {
      Arena memory = offloaded.memory_of(stage, i);
      auto [layer, input] = take.offloaded(memory, l, number, i == 0);
      act.layers.push_back(std::move(layer));
      act.residual[static_cast<std::size_t>(i)] = input;
    } else {
      act.layers.push_back(take.layer(arena, l, number));
    }
  }
  act.residual.front() = ends.first;
  act.residual.back() = ends.last;
  for (index_t i = 1; i < layers.size(); ++i) {
    const bool is_taken = i < offloaded.layers(stage);
    if (!is_taken) act.residual[static_cast<std::size_t>(i)] = take.residual(arena);
  }
  return act;
}

template <class T>
std::shared_ptr<OffloadedLayers> plan_offloaded(Arena& arena, const LayerTaker<T>& take) {
  std::vector<OffloadedLayers::LayerPlans> plans;
  std::vector<index_t> slots;
  index_t first = 0;
  for (const VirtualStage& stage : take.setup.stages) {
    OffloadedLayers::LayerPlans& of_stage = plans.emplace_back();
    for (index_t i = 0; i < std::min(stage.offloaded, stage.layers.size()); ++i) {
      Arena planning = Arena::planning(arena.processor());
      take.offloaded(planning, first + i, stage.layers.begin + i, i == 0);
      of_stage.push_back(planning.plan());
    }
    slots.push_back(stage.slots);
    first += stage.layers.size();
  }
  return std::make_shared<OffloadedLayers>(arena, std::move(plans), slots);
}

// The first and the last hidden states of slots that are computed together are adjacent: a pipeline sends them as one
// message.
template <class T>
std::vector<StageEnds<T>> take_ends(Arena& arena, const LayerTaker<T>& take, index_t slots) {
  const index_t rows = take.s.hidden_rows, columns = take.s.hidden;
  const Matrix<T> first = arena.take<T>(kept, slots * rows, columns), last = arena.take<T>(kept, slots * rows, columns);
  std::vector<StageEnds<T>> ends;
  for (index_t i = 0; i < slots; ++i) {
    const auto of_slot = [&](const Matrix<T>& all) {
      return Matrix<T>(all.data() == nullptr ? nullptr : all.data() + i * rows * columns, rows, columns);
    };
    ends.push_back({of_slot(first), of_slot(last)});
  }
  return ends;
}

template <class T>
std::vector<std::vector<StageActivations<T>>> take_stages(Arena& arena, const LocalSizes& s,
                                                          const ActivationSetup& setup, const GemmRecipe<T>& recipe,
                                                          const Blocks<T>& blocks,
                                                          std::shared_ptr<OffloadedLayers>& offloaded) {
  std::vector<CommonActivations<T>> common;  // of micro-batches that are computed together
  const bool keeps_hidden = kept_outputs<T>(s, setup.any_recompute(), recipe.kept_outputs(s), blocks.attention).hidden;
  for (index_t turn = 0; turn < setup.in_turns; ++turn) {
    CommonActivations<T>& of =
        common.emplace_back(CommonActivations<T>{take_common<T>(arena, s, setup, recipe, blocks), {}});
    of.networks = take_common_networks<T>(arena, setup, keeps_hidden, blocks.feed_forward, of.layer.feed_forward);
  }
  offloaded = plan_offloaded<T>(arena, LayerTaker<T>{s, setup, recipe, blocks, common.front()});
  Range layers;
  std::vector<StageEnds<T>> ends;
  std::vector<std::vector<StageActivations<T>>> stages;
  for (const VirtualStage& stage : setup.stages) {
    const auto number = static_cast<index_t>(stages.size());
    auto& slots = stages.emplace_back();
    layers = {layers.end, layers.end + stage.layers.size()};
    for (index_t i = 0; i < stage.slots; ++i) {
      const auto turn = static_cast<std::size_t>(i % setup.in_turns);
      const LayerTaker<T> take{s, setup, recipe, blocks, common[turn]};
      if (turn == 0) ends = take_ends(arena, take, std::min(setup.in_turns, stage.slots));
      slots.push_back(take_stage<T>(arena, take, layers, number, stage, *offloaded, ends[turn]));
    }
  }
  return stages;
}

template <class T>
Workspace<T> take_workspace(Arena& arena, const LocalSizes& s, const ActivationSetup& setup, GemmRecipe<T>& recipe,
                            const Blocks<T>& blocks) {
  using M = master_t<T>;
  Workspace<T> work;
  work.attention.tiles = arena.take<std::byte>(shared, static_cast<index_t>(s.core.tile_bytes));
  blocks.attention.take_forward(arena, work.attention);
  for (const auto& parts : blocks.feed_forward.kinds()) parts->take_forward(arena, work.feed_forward);
  if (setup.purpose == Purpose::inference) return work;
  blocks.attention.take_backward(arena, work.attention);
  for (const auto& parts : blocks.feed_forward.kinds()) parts->take_backward(arena, work.feed_forward);
  for (index_t i = 0; i < setup.hidden_gradients; ++i)
    work.dx.push_back(arena.take<T>(shared, setup.in_turns * s.hidden_rows, s.hidden));
  work.dn = arena.take<T>(shared, s.hidden_rows, s.hidden);
  if (s.layout.is_parallel) work.dn_mlp = arena.take<T>(shared, s.hidden_rows, s.hidden);
  const Processor processor = arena.processor();
  work.sums =
      arena.take<M>(shared, std::max({s.norm.workspace, s.activation_sums, blocks.attention.sums(s, processor),
                                      kernels::bias_workspace_size(processor, s.tokens, s.biases, s.token_segments)}));
  work.attention.dqkv = arena.take<T>(shared, s.tokens, s.query + 2 * s.key);
  work.attention.dout = arena.take<T>(shared, s.tokens, s.query);
  work.attention.sums = work.feed_forward.sums = work.sums;
  recipe.take_workspace(arena, s, setup);
  return work;
}

template <class T>
std::vector<Workspace<T>> take_others(Arena& arena, const Workspace<T>& first, const LayerNetworks<T>& networks,
                                      const std::vector<std::unique_ptr<nn::TensorParallelRegion<T>>>& regions) {
  std::vector<Workspace<T>> others;
  for (std::size_t turn = 1; turn < regions.size(); ++turn) {
    Workspace<T>& work = others.emplace_back(first);
    work.region = regions[turn].get();
    for (const auto& parts : networks.kinds()) parts->take_turn(arena, static_cast<index_t>(turn), work.feed_forward);
  }
  return others;
}

}  // namespace

deck::Recompute ActivationSetup::any_recompute() const {
  for (const VirtualStage& stage : stages) {
    if (recompute.any(stage.layers.begin, stage.layers.end)) return recompute.how();
  }
  return deck::Recompute::none;
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
  first.attention_output.y = rows(act.attention_output.y);
  first.mlp_output.y = rows(act.mlp_output.y);
  nn::MlpActivations<T>& mlp = first.feed_forward.mlp;
  mlp.gate_up = rows(mlp.gate_up);
  mlp.hidden = rows(mlp.hidden);
  return first;
}

template <class T>
Activations<T>::Activations(Arena& arena, const LocalSizes& s, const ActivationSetup& setup, GemmRecipe<T>& recipe,
                            const AttentionBlocks<T>& attention, const LayerNetworks<T>& feed_forward,
                            const std::vector<std::unique_ptr<nn::TensorParallelRegion<T>>>& regions)
    : stages(take_stages<T>(arena, s, setup, recipe, {attention, feed_forward}, offloaded)),
      final_norm(arena.take<T>(shared, setup.has_head ? s.hidden_rows : 0, s.hidden)),
      final_statistics(arena.take<M>(shared, setup.has_head ? s.hidden_rows * s.norm.statistics : 0)),
      loss(arena, setup.has_head ? s.tokens : 0, s.vocabulary, s.loss_width, s.loss_bias_segments),
      work(take_workspace<T>(arena, s, setup, recipe, {attention, feed_forward})),
      others(take_others<T>(arena, work, feed_forward, regions)) {
  work.region = regions.front().get();
}

#define NANOTRON_INSTANTIATE(T) template LayerActivations<T> first_tokens(const LayerActivations<T>&, index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
NANOTRON_INSTANTIATE_CLASS(Activations)

}  // namespace nanotron::model
