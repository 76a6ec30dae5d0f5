#pragma once

// The tokens of a micro-batch, as attention, position embeddings and routers see them; and what generation keeps of the
// tokens so far.

#include <cstdint>
#include <span>

#include "nanotron/kernels/attention/attention.hpp"
#include "nanotron/tensor/sequence_layout.hpp"

namespace nanotron::nn {

/// How a loader has packed the sequences of a micro-batch.
struct Packing {
  Vector<const std::int32_t> document_starts{};    // as TokenBatch has them
  Vector<const std::int32_t> tokens{};             // (sequences): of each whole sequence; empty: no position is
  index_t step_tokens = 1;                         // of the global batch
  index_t documents = 0;                           // as AttentionShape has them
  SampleNumbers samples{};                         // of training; else unknown
  std::span<const std::int32_t> starts_on_host{};  // document_starts; empty: not known there
};

class RingReach;  // nn/attention/ring_reach.hpp

/// Sequences of equal length, or this rank's tokens of them, and the position of each token.
struct TokenBatch {
  index_t sequences = 0;
  index_t length = 0;  // positions per sequence on this rank
  Vector<const std::int32_t> positions;
  /// (sequences, whole length): where the document of each position begins; empty: each sequence is one document.
  Vector<const std::int32_t> document_starts{};
  index_t documents = 0;  // as AttentionShape has them
  FilledPositions filled{};
  index_t step_tokens = 1;           // positions of the global batch that have a token
  SampleNumbers samples{};           // of training; else unknown
  const RingReach* reach = nullptr;  // null: every block goes round the whole ring

  index_t tokens() const { return sequences * length; }
  /// Documents and samples of the sequences.
  void add_to(kernels::AttentionShape& shape) const {
    shape.document_starts = document_starts.data();
    shape.document_stride = sequences > 0 ? static_cast<index_t>(document_starts.extent(0)) / sequences : 0;
    shape.documents = static_cast<std::int32_t>(documents);
    shape.mask.samples = samples;
  }
};

/// The cache of generation, (sequences x capacity, columns): keys and values, or what a kind of attention makes them
/// from.
template <class T>
struct KeyValueCache {
  Matrix<T> keys{}, values{};
  index_t capacity = 0;  // tokens per sequence; 0: no cache
  index_t past = 0;      // of them in the cache
};

/// Columns of the cache on this rank.
struct CacheColumns {
  index_t keys = 0, values = 0;
};

/// Documents of two or more positions in sequences of `length`, whose documents begin at these positions.
index_t count_documents(std::span<const std::int32_t> document_starts, index_t length);

/// positions (sequences, shard.length()) <- positions in the sequence, or in the document where document_starts
/// (as above, of sequences of `length` tokens) is not empty.
void place_tokens(Device& device, const SequenceShard& shard, index_t length,
                  Vector<const std::int32_t> document_starts, Vector<std::int32_t> positions);

}  // namespace nanotron::nn
