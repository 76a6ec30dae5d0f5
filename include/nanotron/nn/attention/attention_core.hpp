#pragma once

// Attention between q, k, v and its output, where the tokens of each sequence lie over a context-parallel group:
//
//   local        one rank has them all
//   ring         keys and values go round the group, and each rank joins what its queries get from each block (Ring
//                Attention, Liu et al. 2023). Backward sends the blocks round again, and the gradients of a block
//                with it, to which each rank adds its own
//   all-to-all   each rank gets all tokens of a part of the heads, and gives the output's tokens back (DeepSpeed-
//                Ulysses, Jacobs et al. 2023). A key head that query heads of several ranks read is sent to each
//                of them
//
// The order of every sum follows from the ranks' numbers: two runs give the same bits.

#include <memory>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/nn/attention/attention.hpp"
#include "nanotron/nn/pass_traffic.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/sequence_layout.hpp"

namespace nanotron::nn {

/// Memory that attention needs of its caller.
struct CoreSizes {
  index_t lse = 0;           // elements of AttentionActivations::lse
  index_t rows = 0;          // of all_qkv and all_out; 0: none, qkv and out of the tokens here are enough
  index_t qkv_columns = 0;   // of all_qkv
  index_t out_columns = 0;   // of all_out
  std::size_t tile_bytes = 0;
};

template <class T>
class AttentionCore {
 public:
  virtual ~AttentionCore() = default;

  virtual CoreSizes sizes() const = 0;
  virtual PassTraffic traffic() const = 0;

  /// act.qkv -> act.out, and what backward needs. Collective over the context-parallel group, as is backward.
  virtual void forward(Device& device, const TokenBatch& batch, const AttentionActivations<T>& act,
                       const AttentionWorkspace<T>& work) = 0;

  /// work.dout, the gradient of act.out -> work.dqkv, overwritten.
  virtual void backward(Device& device, const TokenBatch& batch, const AttentionActivations<T>& act,
                        const AttentionWorkspace<T>& work) = 0;
};

/// What is cut over the group, and this rank's place.
struct ContextShard {
  deck::CpMode mode = deck::CpMode::ring;
  SequenceLayout layout;
  int rank = 0;
  const SequenceShard& tokens() const { return layout[rank]; }
};

/// Takes what it needs from the arena (planning or real). cp must outlive it. key_length: most keys a local query meets, see TransformerSetup.
template <class T>
std::unique_ptr<AttentionCore<T>> make_attention_core(const ContextShard& context, const AttentionGeometry<T>& geometry,
                                                      index_t sequences, index_t key_length, comm::Group& cp,
                                                      Arena& arena);

}  // namespace nanotron::nn
