#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/data/order/sequences.hpp"
#include "nanotron/data/tokens/token_file.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::data {

// Best-fit packing of segments into bins.

/// Each segment goes into the bin with the least space in which it fits (of several, the most recently used), else into
/// a new bin. Time O(log N) for each of N segments.
class BestFit {
 public:
  explicit BestFit(index_t capacity) : capacity_(capacity) {}

  /// The bin, from 0, of the next segment; 1 <= length <= capacity.
  std::size_t place(index_t length);
  std::size_t bins() const { return bins_; }

 private:
  index_t capacity_;
  std::size_t bins_ = 0;
  std::map<index_t, std::vector<std::size_t>> with_room_;  // bins by their space
};

// Document boundaries of a token file: /documents.

/// All start offsets, in memory: 8 bytes per document. Tokens before the first offset are a document too.
class Documents {
 public:
  /// Error(data_error) when the file has no /documents, or offsets that decrease or exceed the size of /tokens.
  explicit Documents(const TokenFile& file);

  /// out[i] <- max(0, b - first), where b is the first token of the document that has token first + i. Allocates
  /// nothing.
  void starts(index_t first, std::span<std::int32_t> out) const;

  /// The token ranges of all non-empty documents; tokens: size of the file.
  std::vector<Range> ranges(index_t tokens) const;

 private:
  std::vector<std::uint64_t> offsets_;
};

// Packs whole documents into sequences of s positions (best-fit packing; Ding et al. 2024, "Fewer Truncations Improve
// Language Modeling", section 3). A document of n + 1 tokens takes n positions: every token but the last is an input,
// and the token after it is its target. Documents of more than s positions are split into segments of s positions and a
// rest. Segments are placed longest first, each in the fullest sequence in which it fits. Unused positions at the end
// of a sequence are empty, and each is a document of its own. With data%length_buckets segments lie within blocks of
// positions (src/data/order/length_buckets.hpp). Unused positions between them have no target, and count as tokens.

class PackedDocuments final : public Sequences {
 public:
  /// With validation_fraction f the validation split consists of whole documents. A file of n tokens has P = min(256,
  /// documents) equal parts. A document with c tokens before it is held out if fewer than (f n / P) floor(c P / n)
  /// tokens are held out before it. If no document is held out by this rule, the last one is. Stores 16 bytes per
  /// segment and 8 per sequence. Time O(N log N) for N segments. Error(data_error) as for Documents.
  PackedDocuments(const deck::DataConfig& data, const TokenFile& file, Split split);

  index_t count() const override { return static_cast<index_t>(begins_.size()) - 1; }
  void read(index_t sequence, const Range& positions, std::int32_t* inputs, std::int32_t* targets) const override;
  void document_starts(index_t sequence, std::span<std::int32_t> out) const override;
  index_t tokens(index_t sequence) const override;
  double filled() const override;
  index_t longest_document(index_t sequence) const override;

 private:
  struct Segment {
    index_t token;              // of its first input, in the file
    std::int32_t length;        // in positions
    std::int32_t position = 0;  // of its first input, in the sequence
    index_t end() const { return index_t{position} + length; }
  };
  std::vector<std::size_t> place(std::vector<Segment>& segments, bool in_buckets) const;
  std::span<const Segment> segments_of(index_t sequence) const {
    return std::span(segments_).subspan(
        begins_[static_cast<std::size_t>(sequence)],
        begins_[static_cast<std::size_t>(sequence) + 1] - begins_[static_cast<std::size_t>(sequence)]);
  }

  const TokenFile& file_;
  index_t length_;
  std::vector<Segment> segments_;    // sequence by sequence
  std::vector<std::size_t> begins_;  // sequence i has segments_[begins_[i] .. begins_[i + 1])
};

}  // namespace nanotron::data
