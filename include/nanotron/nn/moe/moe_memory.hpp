#pragma once

// The memory of a mixture of experts on one rank. Each token has top_k assignments. A row is one token in one expert;
// at most R rows come to the experts here.

#include <cstdint>
#include <memory>
#include <vector>

#include "nanotron/deck/keys/run.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

/// Boundaries at which sums over an expert's rows are split (tensor/sum_order.hpp): none, or those of token shards. A
/// sequence is sharded over `ranks` parts, with shards_on_rank shards in each, whose tokens as many members of the
/// expert-parallel group send in `slices` slices; rows of `sequences` sequences arrive together.
struct ExpertCuts {
  index_t shards_on_rank = 0;  // 0: not split
  index_t ranks = 1;
  index_t slices = 1;
  index_t sequences = 1;
  index_t boundaries_on_rank() const { return shards_on_rank == 0 ? 0 : shards_on_rank + 1; }
  index_t boundaries_of_sequence() const { return shards_on_rank == 0 ? 0 : ranks * shards_on_rank + 1; }
};

/// Max node rows (kernels/moe/node_rows.hpp) sent and received, and rows forwarded for them.
struct NodeRowSizes {
  index_t nodes = 1;  // with one node rows go to their ranks
  index_t sent = 0, received = 0, forwarded = 0;
  index_t assignments = 0;  // of all tokens here, also of those that other ranks send
};

struct MoeSizes {
  index_t tokens = 0;  // of a micro-batch on this rank
  index_t sequences = 0;
  index_t hidden = 0;
  index_t experts = 0;  // of the layer, on all ranks; 0: a dense network
  index_t columns = 0;  // of the router's GEMM: experts, and the gate of a shared expert that has one
  index_t top_k = 0;
  index_t width = 0;           // of an expert, local
  index_t shared_width = 0;    // of the shared expert, local
  index_t rows = 0;            // R
  index_t sent = 0;            // max rows from here: the assignments of the tokens that this rank sends
  bool is_sigmoid = false;     // the router's scores
  index_t bias_segments = 0;   // of the sum over tokens in the gradient of the router's bias; 0: none
  index_t bias_workspace = 0;  // of the gradients of biases, elements
  deck::ExpertGemms gemms = deck::ExpertGemms::library;
  ExpertCuts cuts{};
  NodeRowSizes by_node{};
  bool recompute_dispatch = false;  // no layer keeps its input rows: backward receives them again
  index_t assignments() const { return tokens * top_k; }
};

/// Node rows of a layer, and the rows into which those received are forwarded.
struct NodeRows {
  std::vector<std::int64_t> sent, received;                // by node
  std::vector<std::int64_t> forwarded, arrived;            // by rank of this node
  index_t received_rows = 0, forwarded_rows = 0;           // totals
  Vector<std::int64_t> rows, sources;                      // of kernels::assign_rows: of the assignments here
  Vector<std::int64_t> rows_forwarded, sources_forwarded;  // of the assignments of received node rows
};

/// Numbers of rows sent and received. Received rows are sorted by expert, then source rank, then token. If the host
/// does not count them (ExpertExchange), it treats all assignments as rows; rows after the last one that the device
/// counts belong to no expert and reach no result.
struct ExpertRows {
  index_t sent_rows = 0, received_rows = 0;
  // On the host, where it counts:
  std::vector<std::int64_t> sent;      // to each expert
  std::vector<std::int64_t> received;  // (ranks, experts here)
  std::vector<std::int64_t> begin;     // first row of each expert here, and the end of the last
  // On the device:
  Matrix<std::int64_t> counts{};      // (2, experts), with e > 1: rows sent to each; received, (ranks, experts here)
  Vector<std::int64_t> offsets{};     // as begin, with ExpertGemms::grouped
  std::shared_ptr<NodeRows> nodes{};  // where messages go by node: sent_rows are node rows
  Matrix<std::int64_t> cuts{};        // (experts here x sequences, boundaries_of_sequence()), see kernels::join_cuts
  /// The rows of expert e that belong to the s-th of `sequences` sequences.
  Range of_sequence(std::size_t e, index_t s, index_t sequences) const;
};

/// Saved from forward for backward. Matrices of R rows use the first ExpertRows::received_rows.
template <class T>
struct RoutedActivations {
  using M = master_t<T>;
  Matrix<M> probabilities;                 // (tokens, experts)
  Vector<M> z;                             // (tokens)
  Vector<M> score_sums;                    // (tokens), of sigmoid scores
  Vector<std::int64_t> assignments;        // (tokens x top_k)
  Vector<M> weights;                       // (tokens x top_k)
  Vector<std::int64_t> row_of_assignment;  // (tokens x top_k); or kernels::no_row, row_of_other_rank
  Vector<std::int64_t> source;             // (tokens x top_k): which assignment each sent row is
  Vector<M> gate;                          // (tokens), of a gated shared expert
  Matrix<T> dlogits;                       // (tokens, columns): from backward_input to backward_input_weight
  Matrix<T> input;        // (R, hidden): the experts' input rows; none where backward receives them again
  Vector<M> row_weights;  // (R)
  Matrix<T> gate_up;      // (R, gate | up); overwritten by its gradient in backward
  Matrix<T> hidden;       // (R, width), weighted
  Matrix<T> doutput;      // (R, hidden): from backward_inside to backward_output_weight
  Matrix<T> shared_gate_up, shared_hidden;  // (tokens, gate | up), (tokens, width), of the shared expert: as above
  std::shared_ptr<ExpertRows> rows;
};

/// Shared by all layers; each overwrites it.
template <class T>
struct RoutedWorkspace {
  using M = master_t<T>;
  Matrix<M> logits;                // (tokens, columns)
  Vector<std::int64_t> counts;     // (experts)
  Matrix<std::int64_t> stretches;  // see kernels::assign_rows
  Matrix<std::int64_t> cuts;       // (experts, boundaries_on_rank()), in the rows sent from here
  Matrix<T> output;  // (R, hidden): the experts' output, or the gradient of their input; recompute_dispatch: also input
  // Only in backward:
  Matrix<std::int64_t> sequence_counts;  // (sequences, experts)
  Matrix<T> dhidden;                     // (R, width)
  Vector<M> drow_weights;                // (R)
  Vector<M> dweights;                    // (tokens x top_k)
  Vector<M> dgate;                       // (tokens)
  Matrix<T> shared_dhidden;              // (tokens, width)
  Vector<M> bias_sums;                   // of the gradients of biases
  std::size_t turn = 0;                  // of micro-batches that are computed together: whose rows these are
};

/// Allocate the activations that are cheap to recompute, those that are not, doutput, and the workspaces; nothing for a
/// dense network. ranks: size of the expert-parallel group.
template <class T>
void take_selective(Arena& arena, MemoryKind kind, const MoeSizes& sizes, RoutedActivations<T>& act);
template <class T>
void take_full(Arena& arena, MemoryKind kind, const MoeSizes& sizes, int ranks, RoutedActivations<T>& act);
template <class T>
void take_doutput(Arena& arena, MemoryKind kind, const MoeSizes& sizes, RoutedActivations<T>& act);
template <class T>
void take_forward(Arena& arena, const MoeSizes& sizes, RoutedWorkspace<T>& work);
template <class T>
void take_backward(Arena& arena, const MoeSizes& sizes, RoutedWorkspace<T>& work);
/// What micro-batches that are computed together do not share.
template <class T>
void take_turn(Arena& arena, const MoeSizes& sizes, index_t turn, RoutedWorkspace<T>& work);

}  // namespace nanotron::nn
