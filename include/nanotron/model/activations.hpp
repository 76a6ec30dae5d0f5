#pragma once

// The memory of a micro-batch on its way through the model: what each layer keeps for backward, what all
// layers share, and what recomputation trades.
//
//   recompute      kept per layer, in elements of T                            computed again in backward
//   none           x, qkv, a, x_mid, n1, n2, gate_up, h                        scores only
//   selective      x, qkv, a, x_mid, gate_up                                   + norms, silu(gate) up
//   full           x                                                           + the whole layer
//
// With experts: gate_up and h of each row they get, and with gate_up its input and the routing.
// Where a sharded hidden states keeps the gathered n1 and n2 (parallel%tp_gathered_inputs), these of all tokens are
// kept beside what is in the table and n1 and n2 of this rank are not; with 'full' they lie in memory that all layers
// share.
//
// (Korthikanti et al. 2022. Scores are never kept: attention recomputes them from lse in every mode.)

#include <vector>

#include "nanotron/deck/config.hpp"
#include "nanotron/model/parameter_table.hpp"
#include "nanotron/nn/attention/attention_core.hpp"
#include "nanotron/nn/linear/hidden_states.hpp"
#include "nanotron/nn/mlp/feed_forward.hpp"
#include "nanotron/nn/norm/norm.hpp"
#include "nanotron/nn/vocab/vocab_loss.hpp"

namespace nanotron::model {

/// Inference takes neither gradients nor backward's workspace.
enum class Purpose { training, inference };

/// The sizes that memory depends on, local to this rank.
struct LocalSizes {
  index_t tokens = 0;     // of a micro-batch
  index_t hidden_rows = 0;  // rows of the hidden states: tokens, or this rank's part of them
  index_t kept_inputs = 0;  // rows of the inputs that blocks keep gathered; 0: none
  index_t hidden = 0;
  index_t query = 0;      // columns of the local query heads
  index_t key = 0;        // columns of the local key heads
  index_t query_heads = 0;
  index_t key_heads = 0;
  index_t intermediate = 0;   // of the dense network, or of the shared expert
  index_t vocabulary = 0;
  index_t layers = 0;     // held here
  index_t gate_up = 0;    // columns of the dense network's first product: gate | up, or up
  nn::NormSizes norm{};       // of hidden states
  index_t biases = 0;         // columns of the widest bias of a linear layer, besides those of q, k, v
  bool qk_norm = false;
  index_t loss_width = 0;       // see nn::LossWorkspace
  index_t token_segments = 1;   // of sums over tokens, and over heads inside them
  index_t head_segments = 1;
  nn::CoreSizes core{};   // of attention
  nn::MoeSizes moe{};
  int ep_size = 1;
};
LocalSizes local_sizes(const deck::ModelConfig& model, const ParameterTable& table, index_t tokens,
                       index_t hidden_rows);

template <class T>
struct LayerActivations {
  using M = master_t<T>;
  Matrix<T> input_norm;       // n1 (hidden states, hidden)
  Matrix<T> input_norm_kept;  // of all tokens (kept_inputs, hidden); empty where backward gathers again
  Vector<M> input_statistics;  // of the norm, see nn::Norm
  nn::AttentionActivations<T> attention;
  Matrix<T> middle;            // x_mid (hidden states, hidden): the hidden states behind attention
  Matrix<T> middle_norm;       // n2 (hidden states, hidden)
  Matrix<T> middle_norm_kept;  // as input_norm_kept
  Vector<M> middle_statistics;
  nn::FeedForwardActivations<T> feed_forward;

  nn::BlockInput<T> attention_input() const { return {input_norm, input_norm_kept}; }
  nn::BlockInput<T> mlp_input() const { return {middle_norm, middle_norm_kept}; }
};

/// The same memory as if the micro-batch had only this many tokens.
template <class T>
LayerActivations<T> first_tokens(const LayerActivations<T>& act, index_t tokens);

/// Overwritten by every layer.
template <class T>
struct Workspace {
  using M = master_t<T>;
  std::vector<Matrix<T>> dx;  // gradients of the hidden states, one a use at a time; each (hidden states, hidden)
  Matrix<T> dn;               // gradient of a norm's output; (hidden states, hidden)
  Vector<M> sums;     // for fixed-order sums over tokens
  nn::AttentionWorkspace<T> attention;
  nn::FeedForwardWorkspace<T> feed_forward;
};

/// What one micro-batch keeps in one virtual stage.
template <class T>
struct StageActivations {
  std::vector<Matrix<T>> residual;          // x of each layer, and behind the last; (hidden states, hidden)
  std::vector<LayerActivations<T>> layers;  // views may coincide between layers
};

/// Layers [begin, end) of the model, computed in one go, and how many micro-batches keep activations of them at
/// once.
struct VirtualStage {
  Range layers;
  index_t slots = 1;
};

/// Backward of a layer at once, or with the weight gradients later: then what they need keeps a place of each layer.
enum class Backward { whole, two_parts };

struct ActivationSetup {
  std::vector<VirtualStage> stages;
  Backward backward = Backward::whole;
  bool has_head = true;
  deck::Recompute recompute = deck::Recompute::none;
  Purpose purpose = Purpose::training;
  index_t hidden_gradients = 1;  // Workspace::dx
};

template <class T>
struct Activations {
  using M = master_t<T>;

  Activations(Arena& arena, const LocalSizes& sizes, const ActivationSetup& setup);

  std::vector<std::vector<StageActivations<T>>> stages;  // by virtual stage and slot
  Matrix<T> final_norm;                                  // empty without a head, as are the next two
  Vector<M> final_statistics;
  nn::LossWorkspace<T> loss;
  Workspace<T> work;
};

}  // namespace nanotron::model
