#pragma once

// What a rank hands to the collectives in one training step, as comm::Traffic counts it: n elements for an
// all-reduce of n or for an all-gather of n from each rank, all n x ranks for a reduce-scatter.
//
//   B tokens, L layers, hidden h, m micro-batches, R = rows of the residual stream, t = tp ranks, in elements of T:
//
//   whole stream   m h B (4 L + 2)        embedding, attention and mlp forward and backward, head
//   split stream   m h R (6 L + 2)        gathers: forward 2 a layer, backward 4, embedding's backward, head
//                                       backward 2 a layer where forward keeps what it gathered
//                + m h R t (4 L + 2)      reduce-scatters, as many elements for any number of chunks
//   pipeline       m h R                  each output to the next stage, each gradient to the one before
//
// A rank of a pipeline counts its own layers, embedding and head; backward in two parts gathers 2 L more.
// B tokens are those of this rank. Attention over c = cp ranks, S tokens of this micro-batch's sequences in all, S_next
// of them on the next rank, q and k columns of the heads here, and q', k' those of the rank's part of them:
//
//   ring           m L (S - S_next) 2 k forward and backward, and m L S 2 k of the master type backward
//   all-to-all     m L (B (sum of q' + 2 k' over ranks) + S q') forward, m L (B q + S (q' + 2 k')) backward
//
// Recomputation 'full' repeats the forward of each layer. In elements of the master type: 3 m B of the loss, and the
// gradients that are partial within the group.
//
// Over the replicas, V elements of vectors and Q of matrices in shard groups of S, in elements of the master type
// but for gathers, which are of T:
//
//   stage 0        V + Q; in bf16 with compression = 'bf16', in fp16 with 'fp16', and a scale for 1024 elements
//   powersgd       V + r (m + n) for each matrix (m, n) that low_rank.hpp factorises + the others
//   adasum         V + Q and 1 / dp of that gathered, and for each tensor 8 bytes a pair of replicas, over tp too
//   stage 1        V + Q             gathers: Q / S behind the update         + Q / S where there are copies
//   stage 2        V + m Q           gathers: Q / S behind the update         + Q / S where there are copies
//   stage 3        V + m Q           gathers: of each unit where a micro-     + Q / S where there are copies
//                                    batch does not find it in its slot
//
//   'layout'       M (V + Q)         gathers: as the stage                    + Q / (dp cp) where shards are fewer
//
// Experts count over those with the same experts, in their shard groups. Tokens on their way to experts and back, k
// choices of each of B over an expert-parallel group, no token dropped:
//
//   forward        m L (2 k B h, and in the master type k B, and 8 E bytes)       backward the same without the counts
//
// What comes back is of other ranks' tokens: counted as this rank's own, so that the sum over the group is right.
// Over c = cp ranks of E experts 8 E bytes a sequence backward, and with a capacity the choices, 8 k a token of the
// longest part, forward.
//
// M rounds of OrderedSum, batch_shards / dp. From stage 2 on matrices that are partial within the tensor-parallel group are summed with every micro-batch.

#include <cstdint>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/model/parameter_table.hpp"

namespace nanotron::parallel {

/// Bytes of one rank in one step; without the few scalars of losses, norms and counters.
struct StepTraffic {
  std::uint64_t tensor_parallel = 0;
  std::uint64_t context_parallel = 0;
  std::uint64_t data_parallel = 0;
  std::uint64_t pipeline = 0;
  std::uint64_t expert_parallel = 0;
};

/// config is resolved; table is that of the rank at this place.
StepTraffic step_traffic(const deck::Config& config, const model::ParameterTable& table, const comm::GridCoordinate& at);

/// The same as what the rank sends to others, for grids to be compared by: over p ranks an all-reduce of n counts n and sends
/// 2 n (p - 1) / p, a reduce-scatter of n in all sends n (p - 1) / p, an all-gather of n from each n (p - 1), an all-to-all what
/// does not stay, a message all. Attention's all-to-alls and those of experts are taken to be even.
StepTraffic sent_traffic(const deck::Config& config, const model::ParameterTable& table, const comm::GridCoordinate& at);

}  // namespace nanotron::parallel
