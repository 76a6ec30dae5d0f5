#pragma once

// The sizes of a model on this rank, from which its memory follows.

#include <vector>

#include "nanotron/model/parameters/layer_layout.hpp"
#include "nanotron/model/parameters/parameter_table.hpp"
#include "nanotron/nn/attention/attention_core.hpp"
#include "nanotron/nn/norm/norm.hpp"

namespace nanotron::model {

/// The sizes that memory depends on, local to this rank.
struct LocalSizes {
  index_t tokens = 0;       // of a micro-batch, on this rank
  index_t hidden_rows = 0;  // rows of the hidden states: tokens; sequence parallel: ceil(tokens / t)
  index_t kept_inputs = 0;  // rows of the gathered inputs that blocks keep; 0: none
  index_t hidden = 0;
  index_t query = 0;  // columns of the local query heads
  index_t key = 0;    // columns of the local key heads
  index_t query_heads = 0;
  index_t key_heads = 0;
  index_t intermediate = 0;  // local width of the dense network, or of the shared expert
  index_t vocabulary = 0;
  index_t layers = 0;    // stored here
  index_t appended = 0;  // of these
  index_t gate_up = 0;   // columns of the dense network's first GEMM: gate | up, or up
  nn::NormSizes norm{};  // of hidden states
  LayerLayout layout{};
  index_t biases = 0;           // size of the largest bias of a linear layer other than q, k, v
  index_t activation_sums = 0;  // of nn::Activation
  bool qk_norm = false;
  index_t query_norms = 0, key_norms = 0;  // statistics of a token
  bool is_routed = false;                  // deck::FeedForwardSizes
  index_t loss_width = 0;                  // see nn::LossWorkspace
  index_t loss_bias_segments = 0;          // the same
  index_t token_segments = 1;              // segments of sums over tokens, and over the heads of a token
  index_t head_segments = 1;
  nn::HeadCounts norm_heads{};  // HeadSum::apart
  nn::CoreSizes core{};         // of attention
  std::vector<Range> chunks{};  // of tokens, see nn::TensorParallelRegion
  bool is_sharded = false;      // the same
};
LocalSizes local_sizes(const deck::ModelConfig& model, const ParameterTable& table, index_t tokens,
                       index_t hidden_rows);

}  // namespace nanotron::model
