#pragma once

// Activation memory of a micro-batch: what each layer keeps for backward, what all layers share, and what activation
// checkpointing (Korthikanti et al. 2022) trades.
//
//   recompute      kept per layer, in elements of T                            recomputed in backward
//   none           x, qkv, attn, x_mid, n1, n2, gate_up, mlp_hidden            attention scores
//   selective      x, qkv, attn, x_mid, gate_up                                + norms, silu(gate) up
//   full           x                                                           + the whole layer
//
// Layers outside of parallel%recompute_layers keep what 'none' does. The first layers of a stage may keep theirs in
// host memory (src/model/layers/offloaded_layers.hpp).
//
//   n1, n2: outputs of the two norms      attn: output of attention      mlp_hidden: silu(gate) up
//
// Other layouts (model/parameters/layer_layout.hpp): where norms follow the blocks, none and selective keep the outputs
// of both blocks too, and have n1 and n2 only where norms precede the blocks; parallel blocks keep no x_mid, and no n2
// if they share their norm.
//
// Attention scores are never kept: backward recomputes them from lse. With experts gate_up and mlp_hidden have one row
// for each token sent to an expert here; the inputs of these rows and the routing are kept with gate_up.
// GEMMs that round their operands may keep codes of them instead (model/layers/gemm_recipe.hpp). With sequence-parallel
// hidden states and parallel%tp_gathered_inputs = 'keep' each layer keeps n1 and n2 of all tokens, and not those of
// this rank's tokens. With 'full' all layers share them.

#include <memory>
#include <vector>

#include "nanotron/deck/keys/model.hpp"
#include "nanotron/deck/layer_recompute.hpp"
#include "nanotron/model/layers/local_sizes.hpp"
#include "nanotron/model/layers/virtual_stage.hpp"
#include "nanotron/nn/linear/tensor_parallel_region.hpp"
#include "nanotron/nn/mlp/feed_forward.hpp"
#include "nanotron/nn/norm/norm.hpp"
#include "nanotron/nn/vocab/vocab_loss.hpp"

namespace nanotron::model {

/// Inference has neither gradients nor a workspace for backward.
enum class Purpose { training, inference };

/// The output of a block (hidden_rows, h), and what the norm after it saves; empty where none follows.
template <class T>
struct BlockOutput {
  Matrix<T> y{};
  Vector<master_t<T>> statistics{};
};

template <class T>
struct LayerActivations {
  using M = master_t<T>;
  Matrix<T> input_norm;        // n1 (hidden_rows, h)
  Matrix<T> input_norm_kept;   // n1 of all tokens (kept_inputs, h); empty where backward gathers again
  Vector<M> input_statistics;  // of the norm, see nn::Norm
  nn::AttentionActivations<T> attention;
  Matrix<T> middle;            // x_mid (hidden_rows, h): the hidden states after attention
  Matrix<T> middle_norm;       // n2 (hidden_rows, h)
  Matrix<T> middle_norm_kept;  // as input_norm_kept
  Vector<M> middle_statistics;
  BlockOutput<T> attention_output, mlp_output;
  nn::FeedForwardActivations<T> feed_forward;

  /// n1 and n2; x, x_mid where the block has no norm of its input.
  nn::BlockInput<T> attention_input(Matrix<const T> x) const {
    return {input_norm.extent(0) > 0 ? Matrix<const T>(input_norm) : x, input_norm_kept};
  }
  nn::BlockInput<T> mlp_input(Matrix<const T> x) const {
    return {middle_norm.extent(0) > 0 ? Matrix<const T>(middle_norm) : x, middle_norm_kept};
  }
};

/// Views of the same memory for a micro-batch of only this many tokens.
template <class T>
LayerActivations<T> first_tokens(const LayerActivations<T>& act, index_t tokens);

/// Shared by all layers, overwritten by each.
template <class T>
struct Workspace {
  using M = master_t<T>;
  nn::TensorParallelRegion<T>* region = nullptr;
  std::vector<Matrix<T>> dx;  // gradients of the hidden states; each (in_turns x hidden_rows, h)
  Matrix<T> dn;               // gradient of a block's input (hidden_rows, h)
  Matrix<T> dn_mlp;           // the same of the other one, if both have the same input
  Vector<M> sums;             // for fixed-order sums over tokens
  nn::AttentionWorkspace<T> attention;
  nn::FeedForwardWorkspace<T> feed_forward;
};

/// What one micro-batch keeps of one virtual stage.
template <class T>
struct StageActivations {
  std::vector<Matrix<T>> residual;          // x of each layer, and the last one's output; (hidden_rows, h)
  std::vector<LayerActivations<T>> layers;  // layers may share views
};

/// Whole backward of a layer, or weight gradients later (zero bubble): then each layer keeps what they need.
enum class Backward { whole, two_parts };

struct ActivationSetup {
  std::vector<VirtualStage> stages;
  Backward backward = Backward::whole;
  bool has_head = true;
  deck::LayerRecompute recompute{};
  Purpose purpose = Purpose::training;
  index_t hidden_gradients = 1;  // Workspace::dx
  index_t in_turns = 1;          // slots i in_turns, i in_turns + 1, ... are computed together

  /// The recomputation of any layer on this rank.
  deck::Recompute any_recompute() const;
};

class OffloadedLayers;  // src/model/layers/offloaded_layers.hpp
template <class T>
class GemmRecipe;  // model/layers/gemm_recipe.hpp
template <class T>
class AttentionBlocks;  // src/model/layers/attention_blocks.hpp
template <class T>
class LayerNetworks;  // src/model/layers/feed_forward_parts.hpp

template <class T>
struct Activations {
  using M = master_t<T>;

  /// recipe, attention and feed_forward allocate what GEMMs, attention and feed-forward networks need in addition.
  Activations(Arena& arena, const LocalSizes& sizes, const ActivationSetup& setup, GemmRecipe<T>& recipe,
              const AttentionBlocks<T>& attention, const LayerNetworks<T>& feed_forward,
              const std::vector<std::unique_ptr<nn::TensorParallelRegion<T>>>& regions);  // by place in a turn

  const StageActivations<T>& at(const Slot& slot) const {
    return stages[static_cast<std::size_t>(slot.stage)][static_cast<std::size_t>(slot.index)];
  }

  const Workspace<T>& work_of(const Slot& slot) const {  // micro-batches that are computed together do not share all
    const auto turn = static_cast<std::size_t>(slot.index) % (others.size() + 1);
    return turn == 0 ? work : others[turn - 1];
  }
  std::shared_ptr<OffloadedLayers> offloaded{};          // of stages
  std::vector<std::vector<StageActivations<T>>> stages;  // by virtual stage and slot
  Matrix<T> final_norm;                                  // empty without a head, as are the next two
  Vector<M> final_statistics;
  nn::LossWorkspace<T> loss;
  Workspace<T> work;
  std::vector<Workspace<T>> others;
};

}  // namespace nanotron::model
