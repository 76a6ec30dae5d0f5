#pragma once

// Which elements of the flat parameter space a buffer holds, and where in it they lie. Offsets of parameters
// count in the flat space; a rank that shards it keeps parts, one behind the other, or slots that several parts
// take in turn.

#include <algorithm>
#include <utility>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

class BufferLayout {
 public:
  /// `range` of the flat space lies at [at, at + range.size()) of the buffer.
  struct Part {
    Range range;
    index_t at = 0;
    friend bool operator==(const Part&, const Part&) = default;
  };

  BufferLayout() = default;  // holds nothing
  /// Ascending and disjoint in the flat space; empty ones are left out, neighbours in both joined.
  explicit BufferLayout(const std::vector<Part>& parts) {
    for (const Part& p : parts) append(p);
  }
  /// All of [0, size), at its own offsets.
  static BufferLayout whole(index_t size) { return BufferLayout({{{0, size}, 0}}); }
  /// The ranges one behind the other.
  static BufferLayout packed(const std::vector<Range>& ranges) {
    BufferLayout p;
    for (const Range& r : ranges) p.append({r, p.size()});
    return p;
  }

  const std::vector<Part>& parts() const { return parts_; }
  friend bool operator==(const BufferLayout&, const BufferLayout&) = default;

  /// Elements of the buffer.
  index_t size() const {
    index_t end = 0;
    for (const Part& p : parts_) end = std::max(end, p.at + p.range.size());
    return end;
  }

  /// Where the element lies; an error when it is not held.
  index_t at(index_t offset) const {
    const auto behind = std::ranges::upper_bound(parts_, offset, {}, [](const Part& p) { return p.range.begin; });
    NANOTRON_REQUIRE(behind != parts_.begin() && std::prev(behind)->range.contains(offset),
                     "element {} of the flat parameters is not held here", offset);
    const Part& p = *std::prev(behind);
    return p.at + offset - p.range.begin;
  }

  /// What is held of a range of the flat space.
  std::vector<Part> within(const Range& range) const {
    std::vector<Part> found;
    for (const Part& p : parts_) {
      const index_t begin = std::max(p.range.begin, range.begin), end = std::min(p.range.end, range.end);
      if (begin < end) found.push_back({{begin, end}, p.at + begin - p.range.begin});
    }
    return found;
  }

  /// Of this buffer, what `other` holds too.
  BufferLayout common(const BufferLayout& other) const {
    BufferLayout p;
    for (const Part& theirs : other.parts_) {
      for (const Part& mine : within(theirs.range)) p.append(mine);
    }
    return p;
  }

 private:
  void append(const Part& p) {
    if (p.range.size() <= 0) return;
    if (!parts_.empty() && parts_.back().range.end == p.range.begin &&
        parts_.back().at + parts_.back().range.size() == p.at) {
      parts_.back().range.end = p.range.end;
    } else {
      parts_.push_back(p);
    }
  }

  std::vector<Part> parts_;
};

}  // namespace nanotron::nn
