#pragma once

// The memory of a mixture of experts, local to a rank. B tokens of k choices each; R rows at most come to the experts
// here, each with the activations of one token in one expert.

#include <cstdint>
#include <memory>
#include <vector>

#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

/// Where the sums over an expert's rows are cut: not at all, or where the shards of the tokens begin and end. A sequence
/// lies on `ranks` of those that share the experts, in `held` shards on each; rows of several may come at once.
struct ExpertCuts {
  index_t held = 0;  // 0: sums follow the rows
  index_t ranks = 1;
  index_t sequences = 1;
  index_t places() const { return held == 0 ? 0 : held + 1; }                 // of a rank's tokens
  index_t joined_places() const { return held == 0 ? 0 : ranks * held + 1; }  // of a sequence
};

struct MoeSizes {
  index_t tokens = 0;     // B
  index_t sequences = 0;
  index_t hidden = 0;
  index_t experts = 0;    // of the layer, on all ranks; 0: a dense network
  index_t columns = 0;    // of the router's product: experts, and the shared expert's gate where there is one
  index_t top_k = 0;
  index_t width = 0;      // of an expert, local
  index_t rows = 0;       // R
  ExpertCuts cuts{};
  index_t choices() const { return tokens * top_k; }
};

/// How many rows go where, on the host. Rows lie by expert, then by the rank they come from, then by token.
struct ExpertRows {
  std::vector<std::int64_t> sent;      // to each expert
  std::vector<std::int64_t> received;  // (ranks, experts here)
  std::vector<std::int64_t> begin;     // of each expert here, and behind the last
  index_t sent_rows = 0;
  index_t received_rows() const { return begin.back(); }
  /// Of expert e, those of the s-th of so many sequences.
  Range of_sequence(std::size_t e, index_t s, index_t sequences) const;
};

/// Kept from forward to backward. Matrices by row have R rows, of which the first ExpertRows::received_rows are used.
template <class T>
struct MoeActivations {
  using M = master_t<T>;
  Matrix<M> probabilities;              // (tokens, experts)
  Vector<M> z;                          // (tokens)
  Vector<std::int64_t> choices;         // (tokens x top_k)
  Vector<M> weights;                    // (tokens x top_k)
  Vector<std::int64_t> row_of_choice;   // (tokens x top_k); -1: dropped
  Vector<std::int64_t> source;          // (tokens x top_k): the choice of each row sent
  Matrix<std::int64_t> cuts;            // (experts here x sequences, joined places), see kernels::join_cuts
  Vector<M> gate;                       // (tokens), of the shared expert
  Matrix<T> dlogits;                    // (tokens, columns): from backward_input to the weights' part
  Matrix<T> input;                      // (R, hidden): the experts' tokens
  Vector<M> row_weights;                // (R)
  Matrix<T> gate_up;                    // (R, gate | up); overwritten by its gradient in backward
  Matrix<T> hidden;                     // (R, width), weighted
  Matrix<T> doutput;                    // (R, hidden): from backward_input to the weights' part
  std::shared_ptr<ExpertRows> rows;
};

/// Shared by all layers, overwritten by each.
template <class T>
struct MoeWorkspace {
  using M = master_t<T>;
  Matrix<M> logits;                  // (tokens, columns)
  Vector<std::int64_t> counts;       // (experts)
  Matrix<std::int64_t> stretches;    // of kernels::assign_rows
  Matrix<std::int64_t> cuts;         // (experts, places), of the tokens here
  Matrix<T> output;                  // (R, hidden): the experts' output, or the gradient of their input
  // Backward alone:
  Matrix<std::int64_t> sequence_counts;  // (sequences, experts)
  Matrix<T> dhidden;                 // (R, width)
  Vector<M> drow_weights;            // (R)
  Vector<M> dweights;                // (tokens x top_k)
  Vector<M> dgate;                   // (tokens)
};

/// What is computed again cheaply, and what is not; nothing for a dense network. ranks: that share the experts.
template <class T>
void take_cheap(Arena& arena, MemoryKind kind, const MoeSizes& sizes, MoeActivations<T>& act);
template <class T>
void take_costly(Arena& arena, MemoryKind kind, const MoeSizes& sizes, int ranks, MoeActivations<T>& act);
template <class T>
void take_doutput(Arena& arena, MemoryKind kind, const MoeSizes& sizes, MoeActivations<T>& act);
template <class T>
void take_forward(Arena& arena, const MoeSizes& sizes, MoeWorkspace<T>& work);
template <class T>
void take_backward(Arena& arena, const MoeSizes& sizes, MoeWorkspace<T>& work);

}  // namespace nanotron::nn
