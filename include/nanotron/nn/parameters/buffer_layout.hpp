#pragma once

// Which elements of the flat parameter space a buffer stores, and at which offsets. Parameter offsets count in the flat
// space. A sharded buffer stores parts of it one after another, or in slots that several parts share over time.

#include <algorithm>
#include <utility>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

class BufferLayout {
 public:
  /// `range` of the flat space is stored at [at, at + range.size()) of the buffer.
  struct Part {
    Range range;
    index_t at = 0;
    friend bool operator==(const Part&, const Part&) = default;
  };

  BufferLayout() = default;  // stores nothing
  /// parts: ascending and disjoint in the flat space. Drops empty parts; merges parts contiguous in both.
  explicit BufferLayout(const std::vector<Part>& parts) {
    for (const Part& p : parts) append(p);
  }
  /// All of [0, size), at its own offsets.
  static BufferLayout whole(index_t size) { return BufferLayout({{{0, size}, 0}}); }
  /// The ranges one after another, without gaps.
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

  /// The buffer offset of the element at flat `offset`; an error where it is not stored.
  index_t at(index_t offset) const {
    const auto behind = std::ranges::upper_bound(parts_, offset, {}, [](const Part& p) { return p.range.begin; });
    NANOTRON_REQUIRE(behind != parts_.begin() && std::prev(behind)->range.contains(offset),
                     "element {} of the flat parameters is not stored here", offset);
    const Part& p = *std::prev(behind);
    return p.at + offset - p.range.begin;
  }

  /// The stored parts of a range of the flat space.
  std::vector<Part> within(const Range& range) const {
    std::vector<Part> found;
    for (const Part& p : parts_) {
      const index_t begin = std::max(p.range.begin, range.begin), end = std::min(p.range.end, range.end);
      if (begin < end) found.push_back({{begin, end}, p.at + begin - p.range.begin});
    }
    return found;
  }

  /// The parts of this buffer that `other` stores too, at the offsets of this one.
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
