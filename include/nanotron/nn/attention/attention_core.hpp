#pragma once

// Attention from q, k, v to its output, with the tokens of each sequence sharded over a context-parallel group:
//
//   local        cp = 1: the rank has all tokens
//   ring         keys and values go round the group; each rank merges the partial outputs of its queries, one per block
//                (Ring Attention, Liu et al. 2023). In backward the blocks go round again, each with its gradient, to
//                which every rank adds
//   all-to-all   each rank receives all tokens of a part of the heads, and sends the output of each token back
//                (DeepSpeed-Ulysses, Jacobs et al. 2023). A key head that query heads on several ranks read is sent to
//                each of them
//   gathered     each rank receives the keys and values of all tokens, and computes with its own queries (Llama Team
//                2024, section 3.3.2); in backward also all queries, for the gradients of its own keys. No sum depends
//                on the number of ranks (reproducible = 'layout')
//   both         an all-to-all between neighbours gives each all tokens of their part of the sequence, for its heads;
//                these parts go round a ring (USP, Fang and Zhao 2024). A ring of r ranks has r messages, an
//                all-to-all of a ranks needs a heads: the two together reach r a ranks
//
// Around each of them, where reproducible = 'layout' has more tensor shards than the model has key heads:
//
//   shared keys  the gradient of a key head is a tree over pieces of its query heads, which tensor-parallel ranks
//   gather
//
// Rank numbers fix the order of every sum: two runs give the same bits.

#include <memory>
#include <vector>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/nn/attention/attention.hpp"
#include "nanotron/nn/pass_traffic.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/sequence_layout.hpp"

namespace nanotron::nn {

/// Buffer sizes that the caller allocates for attention.
struct CoreSizes {
  index_t lse = 0;          // elements of AttentionActivations::lse
  index_t rows = 0;         // of all_qkv and all_out; 0: not needed
  index_t qkv_columns = 0;  // of all_qkv
  index_t out_columns = 0;  // of all_out
  std::size_t tile_bytes = 0;
};

template <class T>
class AttentionCore {
 public:
  using Geometry = AttentionGeometry<T>;  // of a layer: heads and widths are those of the core

  virtual ~AttentionCore() = default;

  virtual CoreSizes sizes(const Geometry& layer, Processor processor) const = 0;
  virtual PassTraffic traffic() const = 0;

  /// act.qkv -> act.out, overwritten, and what backward needs. Collective over the context-parallel group, as is
  /// backward.
  virtual void forward(Device& device, const Geometry& layer, const TokenBatch& batch,
                       const AttentionActivations<T>& act, const AttentionWorkspace<T>& work) = 0;

  /// work.dout, the gradient of act.out -> work.dqkv, overwritten.
  virtual void backward(Device& device, const Geometry& layer, const TokenBatch& batch,
                        const AttentionActivations<T>& act, const AttentionWorkspace<T>& work) = 0;

  /// Call it once at start-up, on zeroed memory: runs the kernels of both without communication. A library of a GPU
  /// then plans and loads what it needs while no receive is posted: loading may wait for all of the device.
  virtual void prepare(Device& device, const Geometry& layer, const TokenBatch& batch,
                       const AttentionActivations<T>& act, const AttentionWorkspace<T>& work) = 0;
};

/// How sequences are sharded over the context-parallel group, and this rank in it.
struct ContextShard {
  ContextDegrees degrees{};
  SequenceLayout layout;
  int rank = 0;
  const SequenceShard& tokens() const { return layout[rank]; }
};

/// This rank's neighbours, and the ranks with its place among theirs.
struct ContextGroups {
  comm::Group* all_to_all = &comm::alone();
  comm::Group* ring = &comm::alone();  // or those that gather
};

/// The gradients of a key head as a tree over pieces of so many of its query heads, a divisor of each rank's and of
/// those that read a key head. 0: a rank adds all of its query heads that read it.
struct SharedKeys {
  index_t piece = 0;
  std::vector<Range> query_heads{};  // of each rank of tp
  comm::Group* tp = &comm::alone();
};

/// Serves all layers of a model: they have the heads and widths of `geometry`. Takes what it needs from the arena
/// (planning or real). The groups must outlive it. key_length: max keys per query where cp = 1, see TransformerSetup.
template <class T>
std::unique_ptr<AttentionCore<T>> make_attention_core(const ContextShard& context, const AttentionGeometry<T>& geometry,
                                                      index_t sequences, index_t key_length,
                                                      const ContextGroups& groups, const SharedKeys& keys,
                                                      Arena& arena);

}  // namespace nanotron::nn
