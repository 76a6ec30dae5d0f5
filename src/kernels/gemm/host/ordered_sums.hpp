#pragma once

// The operands of a GEMM in a fixed order (gemm_fixed_order_host.cpp), packed in the order of the sum, and the sums of
// their shards: as a chain of fma, or, of bf16, in the order of pair_order.hpp, by fma or by AMX. A class of sums has
//
//   void pack_a(const T* a, index_t first, index_t rows, Element* panel)      at most block_rows rows of op(A)
//   void pack_b(const T* b, index_t first, Element* panel)                    a tile of columns of op(B)
//   index_t depth()                                                           of both panels
//   index_t sum(int shard, index_t at, Begin begin, Range rows, index_t columns, const Element* a, const Element* b,
//               M* c)
//   rows_at_once                                                              how many rows sum is called for, at most
//
// sum: at: where the shard begins in the panels' depth; returns how much of it the shard takes. rows: of A's panel,
// from a multiple of rows_at_once on. The first columns of c (rows, tile_columns) are overwritten, or, with
// Begin::at_c, the sum begins with them.

#include <algorithm>

#include "kernels/gemm/bf16_tiles.hpp"
#include "kernels/gemm/gemm_backend.hpp"
#include "kernels/gemm/gemm_tiles.hpp"
#include "kernels/gemm/host/pair_tiles.hpp"
#include "kernels/loop/host_tiles.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels::detail {

inline constexpr index_t block_rows = 16 * tile_rows;  // of A's panel
template <class M>
inline constexpr index_t tile_columns = row_registers* register_width<M>;
inline constexpr index_t depth_of_piece = 128;  // of B, 32 KiB for fp32 on AVX-512: it stays in the L1 cache

// f(terms) of each block with terms.
template <class F>
void for_each_range(const SumOrder& order, int shard, const F& f) {
  for (int b = 0; b < order.block_count; ++b) {
    const Range terms = order.terms(b, shard);
    if (terms.size() > 0) f(terms);
  }
}

inline index_t terms_of(const SumOrder& order, int shard) {
  index_t count = 0;
  for_each_range(order, shard, [&](const Range& terms) { count += terms.size(); });
  return count;
}

// f(its first row in the packed panel, a range of k), in the order of the sum.
template <class F>
void for_each_packed_range(const SumOrder& order, const F& f) {
  index_t at = 0;
  for (int s = 0; s < order.shards_on_rank; ++s) {
    for_each_range(order, s, [&](const Range& terms) {
      f(at, terms);
      at += terms.size();
    });
  }
}
// f(row of the packed panel, k).
template <class F>
void for_each_term(const SumOrder& order, const F& f) {
  for_each_packed_range(order, [&](index_t at, const Range& terms) {
    for (index_t k = terms.begin; k < terms.end; ++k) f(at++, k);
  });
}

/// Operands in the master type M:
///   A   (rows / tile_rows, k, tile_rows), zeros below the last row
///   B   a tile of columns (k, tile_columns), zeros right of the last column
template <class T, class M>
struct RowPanels {
  using Element = M;
  static constexpr index_t rows_at_once = 8 * tile_rows;
  struct Scope {};  // of a thread that adds
  const GemmProblem& p;
  const SumOrder& order;

  index_t depth() const { return p.k; }

  void pack_a(const T* a, index_t first, index_t rows, M* panel) const {
    const index_t row_stride = p.op_a == Op::none ? p.leading_a : 1, k_stride = p.op_a == Op::none ? 1 : p.leading_a;
    for (index_t i = 0; i < rows; i += tile_rows) {
      M* const tile = panel + i * p.k;
      const index_t count = std::min(tile_rows, rows - i);
      const T* const from = a + (first + i) * row_stride;
      if (count == tile_rows) {
        for_each_term(order, [=](index_t at, index_t k) {
          for (index_t r = 0; r < tile_rows; ++r)
            tile[at * tile_rows + r] = static_cast<M>(from[r * row_stride + k * k_stride]);
        });
        continue;
      }
      for_each_term(order, [=](index_t at, index_t k) {
        for (index_t r = 0; r < tile_rows; ++r)
          tile[at * tile_rows + r] = r < count ? static_cast<M>(from[r * row_stride + k * k_stride]) : M(0);
      });
    }
  }

  void pack_b(const T* b, index_t first, M* panel) const {
    constexpr index_t width = tile_columns<M>;
    const index_t columns = std::min(width, p.n - first);
    if (p.op_b == Op::none) {
      for_each_term(order, [=, leading = p.leading_b](index_t at, index_t k) {
        const T* const from = b + k * leading + first;
        M* const to = panel + at * width;
        if (columns == width) {
          HostRow{}.for_each(width, [=](index_t j) { to[j] = static_cast<M>(from[j]); });
        } else {
          for (index_t j = 0; j < width; ++j) to[j] = j < columns ? static_cast<M>(from[j]) : M(0);
        }
      });
      return;
    }
    for_each_packed_range(order, [=, this](index_t at, const Range& terms) {
      for (index_t done = 0; done < terms.size(); done += depth_of_piece) {
        const Range piece{terms.begin + done, std::min(terms.begin + done + depth_of_piece, terms.end)};
        for (index_t j = 0; j < width; j += line) {
          const index_t count = std::clamp<index_t>(columns - j, 0, line);
          transpose(b + (first + j) * p.leading_b, p.leading_b, count, piece, panel + (at + done) * width + j);
        }
      }
    });
  }

 private:
  // Elements of a cache line, or of a row of the panel.
  static constexpr index_t line = std::min<index_t>(64 / sizeof(T), tile_columns<M>);
  static_assert(tile_columns<M> % line == 0);

  // The terms of `count` rows at `from`, zeros up to a line of them -> to (terms, line), rows tile_columns apart.
  static void transpose(const T* from, index_t leading, index_t count, const Range& terms, M* to) {
    // First in the order of addresses, which the processor recognises and fetches ahead.
    for (index_t j = 0; j < count; ++j) {
      for (index_t k = terms.begin; k < terms.end; k += line)
        static_cast<void>(*reinterpret_cast<const volatile unsigned char*>(from + j * leading + k));
    }
    for (index_t k = terms.begin; k < terms.end; k += line) {
      const index_t depth = std::min(line, terms.end - k);
      for (index_t j = 0; j < line; ++j) {
        M* const column = to + (k - terms.begin) * tile_columns<M> + j;
        for (index_t i = 0; i < depth; ++i)
          column[i * tile_columns<M>] = j < count ? static_cast<M>(from[j * leading + k + i]) : M(0);
      }
    }
  }
};

/// For each element a chain of fma over all terms of the shard.
template <class T, class M>
struct ChainSums : RowPanels<T, M> {
  index_t sum(int shard, index_t at, Begin begin, Range rows, index_t, const M* a, const M* b, M* c) const {
    constexpr index_t width = tile_columns<M>;
    const index_t depth = terms_of(this->order, shard), k = this->p.k;
    if (depth == 0 && begin == Begin::at_zero) std::fill(c, c + round_up(rows.size(), tile_rows) * width, M(0));
    for (index_t done = 0; done < depth; done += depth_of_piece) {
      const index_t piece = std::min(depth_of_piece, depth - done), first = at + done;
      for (index_t i = 0; i < rows.size(); i += tile_rows) {
        tile_kernel<row_registers, M>(piece, {a + (rows.begin + i) * k + first * tile_rows, 1, tile_rows},
                                      b + first * width, width, c + i * width, width, done > 0 || begin == Begin::at_c);
      }
    }
    return depth;
  }
};

/// The order of pair_order.hpp by fma.
struct PairSums : RowPanels<bf16, float> {
  static constexpr index_t width = tile_columns<float>;

  index_t sum(int shard, index_t at, Begin begin, Range rows, index_t, const float* a, const float* b, float* c) const {
    const index_t first = at, count = round_up(rows.size(), tile_rows);
    if (begin == Begin::at_zero) std::fill(c, c + count * width, 0.0F);
    for_each_range(order, shard, [&](const Range& range) {
      for (index_t done = 0; done < range.size(); done += depth_of_piece) {
        const index_t depth = std::min(depth_of_piece, range.size() - done);
        for (index_t i = 0; i < count; i += tile_rows) {
          add_pairs(tile_rows, width, depth, {a + (rows.begin + i) * p.k + (at + done) * tile_rows, 1, tile_rows},
                    b + (at + done) * width, width, c + i * width, width);
        }
      }
      at += range.size();
    });
    return at - first;
  }
};

#ifdef NANOTRON_HAS_AMX
/// The same order by the instruction that has it, TDPBF16PS. Operands in tiles, range after range, each filled up with
/// zeros to whole tiles.
class TileSums {
 public:
  using Element = bf16;
  using Scope = bf16_tiles::TileScope;
  static constexpr index_t width = tile_columns<float>, block = 2 * bf16_tiles::tile_extent, rows_at_once = block;
  static_assert(pair_terms == bf16_tiles::tile_depth && width % block == 0 && block_rows % block == 0);

  TileSums(const GemmProblem& problem, const SumOrder& order) : p_(problem), order_(order) {
    for (int s = 0; s < order.shards_on_rank; ++s)
      for_each_range(order, s, [&](const Range& terms) { depth_ += padded(terms); });
  }

  /// Whether there are terms, and tiles may be used and take no more memory than panels of fp32.
  bool fits() const { return depth_ > 0 && depth_ <= 2 * p_.k && bf16_tiles::available(); }
  index_t depth() const { return depth_; }

  void pack_a(const bf16* a, index_t first, index_t rows, bf16* panel) const {
    for_each_packed([&](const Range& terms) {
      if (p_.op_a == Op::none) {
        bf16_tiles::pack_along_depth<false>(a + first * p_.leading_a + terms.begin, p_.leading_a, rows, terms.size(),
                                            panel);
      } else {
        bf16_tiles::pack_across_depth<true>(a + first + terms.begin * p_.leading_a, p_.leading_a, rows, terms.size(),
                                            panel);
      }
      panel += block_rows * padded(terms);
    });
  }

  void pack_b(const bf16* b, index_t first, bf16* panel) const {
    const index_t columns = std::min(width, p_.n - first);
    for_each_packed([&](const Range& terms) {
      if (p_.op_b == Op::none) {
        bf16_tiles::pack_across_depth<false>(b + terms.begin * p_.leading_b + first, p_.leading_b, columns,
                                             terms.size(), panel);
      } else {
        bf16_tiles::pack_along_depth<true>(b + first * p_.leading_b + terms.begin, p_.leading_b, columns, terms.size(),
                                           panel);
      }
      panel += width * padded(terms);
    });
  }

  index_t sum(int shard, index_t at, Begin begin, Range rows, index_t columns, const bf16* a, const bf16* b,
              float* c) const {
    const index_t first = at;
    for_each_range(order_, shard, [&](const Range& terms) {
      const index_t depth = padded(terms), strip = depth * bf16_tiles::tile_extent;
      const bf16 *const of_a = a + at * block_rows, *const of_b = b + at * width;
      for (index_t j = 0; j < columns; j += block) {
        bf16_tiles::multiply_block(of_a + rows.begin * depth, strip, of_b + j * depth, strip, depth / pair_terms, c + j,
                                   width, at > first || begin == Begin::at_c);
      }
      at += depth;
    });
    if (at == first && begin == Begin::at_zero) std::fill(c, c + rows.size() * width, 0.0F);
    return at - first;
  }

 private:
  static index_t padded(const Range& terms) { return round_up(terms.size(), pair_terms); }
  template <class F>
  void for_each_packed(const F& f) const {
    for (int s = 0; s < order_.shards_on_rank; ++s) for_each_range(order_, s, f);
  }

  const GemmProblem& p_;
  const SumOrder& order_;
  index_t depth_ = 0;
};
#endif

}  // namespace nanotron::kernels::detail
