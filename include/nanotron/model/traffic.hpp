#pragma once

// What a rank hands to the collectives in one training step, as comm::Traffic counts it: n elements for an
// all-reduce of n or for an all-gather of n from each rank, all n x ranks for a reduce-scatter.
//
//   B tokens, L layers, hidden h, m micro-batches, R = rows of the residual stream, t = tp ranks, in elements of T:
//
//   whole stream   m h B (4 L + 2)        embedding, attention and mlp forward and backward, head
//   split stream   m h R (6 L + 2)        gathers: forward 2 a layer, backward 4, embedding's backward, head
//                + m h R t (4 L + 2)      reduce-scatters
//
// B tokens are those of this rank. Attention over c = cp ranks, S tokens of this micro-batch's sequences in all, S_next
// of them on the next rank, q and k columns of the heads here, and q', k' those of the rank's part of them:
//
//   ring           m L (S - S_next) 2 k forward and backward, and m L S 2 k of the master type backward
//   all-to-all     m L (B (sum of q' + 2 k' over ranks) + S q') forward, m L (B q + S (q' + 2 k')) backward
//
// Recomputation 'full' repeats the forward of each layer. In elements of the master type: 3 m B of the loss, the
// gradients that are partial within the group, and the flat gradient buffer once over the replicas.

#include <cstdint>

#include "nanotron/deck/config.hpp"
#include "nanotron/model/parameter_table.hpp"

namespace nanotron::model {

/// Bytes of one rank in one step; without the few scalars of losses, norms and counters.
struct StepTraffic {
  std::uint64_t tensor_parallel = 0;
  std::uint64_t context_parallel = 0;
  std::uint64_t data_parallel = 0;
};

/// config is resolved; table is the rank's, cp_rank its place in the context-parallel group.
StepTraffic step_traffic(const deck::Config& config, const ParameterTable& table, int cp_rank);

}  // namespace nanotron::model
