#pragma once

// A reduction tree fixed in advance, for sums whose bits must not depend on how many ranks share the terms
// (precision%reproducible = 'layout'). An extent is split into a fixed number of shards, the same on every grid. The
// terms of a shard are added in order; the sums of shards in a binary tree, neighbours in pairs:
//
//   ((s0 + s1) + (s2 + s3)) + (s4 + s5)
//
// A rank that holds 2^j neighbouring shards, from one with an index that is a multiple of 2^j on, computes a node of
// that tree. Ranks continue with these nodes as leaves, and get the same bits as one rank that holds everything.

#include <cstdint>
#include <initializer_list>

#include "nanotron/tensor/shard.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron {

/// shard_range over `parts` ranks, split at boundaries of `shards` shards: a rank holds shards / parts
/// neighbouring shards (deck::holds_node). parts divides shards.
constexpr Range shard_range(index_t extent, int shards, int parts, int index) {
  const int each = shards / parts;
  return {shard_range(extent, shards, index * each).begin, shard_range(extent, shards, (index + 1) * each - 1).end};
}

/// The terms of a sum on one rank: blocks stored one after the other, each this rank's part of an extent split into
/// `shards` shards. Terms of a shard: its piece of the first block, then of the second, ... Or one block, split at
/// `cuts`.
struct SumOrder {
  struct Block {
    index_t extent = 0;      // global, over all ranks, in units
    int width = 1, per = 1;  // `width` terms in `per` units: shard s begins at term floor(cut(extent, s) width / per)
    int before = 0, after = 0;  // elements stored here around this rank's terms; other ranks add them
  };
  // Not an array: of one of more than 64 bytes GCC 12 misplaces the padding behind it (tests/emulation/closure.hpp).
  Block block_0{}, block_1{}, block_2{};
  int block_count = 0;  // 0: one shard, all terms in storage order
  int shards = 1;       // of the global extent
  int first = 0;        // the first shard held here
  int shards_on_rank = 1;
  const std::int64_t* cuts = nullptr;  // (shards_on_rank + 1), in MemorySpace: shard s here is [cuts[s], cuts[s + 1])
  index_t counted = 0;                 // terms, cuts[shards_on_rank] - cuts[0]; 0 without cuts

  SumOrder() = default;
  SumOrder(std::initializer_list<Block> list, int all_shards, int parts, int index)
      : block_count(static_cast<int>(list.size())),
        shards(all_shards),
        first(index * (all_shards / parts)),
        shards_on_rank(all_shards / parts) {
    int b = 0;
    for (const Block& block : list) (b == 0 ? block_0 : b == 1 ? block_1 : block_2) = block, ++b;
  }
  /// `terms` terms in `shards` shards, split at cuts (shards + 1), which must outlive the order.
  static SumOrder at_cuts(const std::int64_t* cuts, int shards, index_t terms) {
    SumOrder order;
    order.block_count = 1;
    order.shards = order.shards_on_rank = shards;
    order.cuts = cuts;
    order.counted = terms;
    return order;
  }

  NANOTRON_FUNCTION const Block& block(int b) const { return b == 0 ? block_0 : b == 1 ? block_1 : block_2; }

  /// Offsets of the terms of block b of held shard s.
  NANOTRON_FUNCTION Range terms(int b, int s) const {
    if (cuts != nullptr) return {cuts[s], cuts[s + 1]};
    index_t at = 0;
    for (int i = 0; i < b; ++i) at += stored(block(i));
    at += block(b).before;
    return {at + terms_of(block(b), s), at + terms_of(block(b), s + 1)};
  }
  /// Of one of the blocks; without blocks this order.
  SumOrder of_block(int b) const {
    if (block_count == 0) return *this;
    SumOrder one = *this;
    one.block_0 = block(b);
    one.block_count = 1;
    return one;
  }
  /// Terms stored on this rank.
  index_t size() const {
    index_t sum = counted;
    for (int b = 0; b < block_count; ++b) sum += stored(block(b));  // 0 with cuts
    return sum;
  }

 private:
  // Terms of the first `count` held shards.
  NANOTRON_FUNCTION index_t terms_of(const Block& block, int count) const {
    return begin(block, first + count) - begin(block, first);
  }
  NANOTRON_FUNCTION index_t begin(const Block& block, int shard) const {
    return cut(block.extent, shard) * block.width / block.per;
  }
  NANOTRON_FUNCTION index_t stored(const Block& block) const {
    return block.before + terms_of(block, shards_on_rank) + block.after;
  }
  // Begin of a shard, as in shard_range.
  NANOTRON_FUNCTION index_t cut(index_t extent, int shard) const {
    const index_t base = extent / shards, extra = extent % shards;
    return shard * base + (shard < extra ? shard : extra);
  }
};

/// Adds a list of sums in the order of the tree, on the caller's stack of `depth` levels:
///   for each sum: stack[tree.top()] = sum; tree.push(add)
///   tree.finish(add)                 the total is stack[0]
/// add(into, from): stack[into] += stack[from]. It is a function of the host or of a kernel, as the caller is.
class TreeStack {
 public:
  static constexpr int depth = 16;
  NANOTRON_FUNCTION int top() const { return top_; }
  NANOTRON_OF_ITS_CALLER
  template <class Add>
  NANOTRON_FUNCTION void push(const Add& add) {
    ++top_;
    for (int n = count_++; n & 1; n >>= 1) fold(add);
  }
  /// The total is in level 0.
  NANOTRON_OF_ITS_CALLER
  template <class Add>
  NANOTRON_FUNCTION void finish(const Add& add) {
    while (top_ > 1) fold(add);
  }

 private:
  NANOTRON_OF_ITS_CALLER
  template <class Add>
  NANOTRON_FUNCTION void fold(const Add& add) {
    --top_;
    add(top_ - 1, top_);
  }
  int top_ = 0, count_ = 0;
};

}  // namespace nanotron
