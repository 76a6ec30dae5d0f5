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
#include <cstdint>

#include "kernels/gemm/bf16_tiles.hpp"
#include "kernels/gemm/gemm_backend.hpp"
#include "kernels/gemm/gemm_tiles.hpp"
#include "kernels/gemm/pair_order.hpp"
#include "kernels/loop/host_tiles.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels::detail {

inline constexpr index_t block_rows = 16 * tile_rows;  // of A's panel
template <class M>
inline constexpr index_t tile_columns = row_registers* register_width<M>;
inline constexpr index_t depth_of_piece = 256;

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
    // Blocks of one cache line of each of so many rows of B: what is written stays in the cache, too.
    constexpr index_t line = 64 / static_cast<index_t>(sizeof(T));
    for_each_packed_range(order, [=, leading = p.leading_b](index_t at, const Range& terms) {
      for (index_t done = 0; done < terms.size(); done += line) {
        const index_t depth = std::min(line, terms.size() - done);
        for (index_t j = 0; j < width; j += line) {
          const T* const from = b + (first + j) * leading + terms.begin + done;
          transpose(from, leading, std::min(line, width - j), std::clamp<index_t>(columns - j, 0, line), depth,
                    panel + (at + done) * width + j);
        }
      }
    });
  }

 private:
  // The first `count` rows of `from`, (extent, depth), and zeros -> to (depth, extent), tile_columns apart.
  static void transpose(const T* from, index_t leading, index_t extent, index_t count, index_t depth, M* to) {
    constexpr index_t width = tile_columns<M>;
    for (index_t j = 0; j < extent; ++j) {
      for (index_t k = 0; k < depth; ++k) to[k * width + j] = j < count ? static_cast<M>(from[j * leading + k]) : M(0);
    }
  }
};

/// The arithmetic of pair_order.hpp by instructions of fp32: from construction to destruction operands and results of
/// fp32 that are subnormal become zeros. Calls between have to be calls: the compiler knows nothing of this state and
/// moves arithmetic, not what may write memory.
class FlushToZero {
 public:
#if defined(__AVX__) && defined(__FMA__)
  FlushToZero() : saved_(_mm_getcsr()) { set(saved_ | flush_results | operands_are_zeros); }
  ~FlushToZero() { set(saved_); }
  /// Whether all results so far are those of pair_order.hpp.
  bool is_exact() const { return true; }

 private:
  static constexpr unsigned flush_results = 0x8000, operands_are_zeros = 0x40;
  static void set(unsigned state) { asm volatile("ldmxcsr %0" : : "m"(state) : "memory"); }
  unsigned saved_;
#elif defined(__aarch64__)
  // A result is flushed here before it is rounded, so one that would round up to 2^-126 differs. Underflow is recorded.
  FlushToZero() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_) : : "memory");
    asm volatile("mrs %0, fpsr" : "=r"(flags_) : : "memory");
    asm volatile("msr fpsr, %0\n\tmsr fpcr, %1" : : "r"(flags_ & ~underflow), "r"(saved_ | flush) : "memory");
  }
  ~FlushToZero() { asm volatile("msr fpsr, %0\n\tmsr fpcr, %1" : : "r"(flags_), "r"(saved_) : "memory"); }
  bool is_exact() const {
    std::uint64_t now = 0;
    asm volatile("mrs %0, fpsr" : "=r"(now) : : "memory");
    return (now & underflow) == 0;
  }

 private:
  static constexpr std::uint64_t flush = std::uint64_t{1} << 24, underflow = std::uint64_t{1} << 3;
  std::uint64_t saved_ = 0, flags_ = 0;
#else
  FlushToZero() {}
  bool is_exact() const { return false; }
#endif

 public:
  FlushToZero(const FlushToZero&) = delete;
  FlushToZero& operator=(const FlushToZero&) = delete;
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

  index_t sum(int shard, index_t at, Begin, Range rows, index_t, const float* a, const float* b, float* c) const {
    const index_t depth = terms_of(order, shard);
    const float* const of_rows = a + rows.begin * p.k;
    bool is_exact = false;
    {  // single operations have subnormal numbers
      const FlushToZero flush;
      add_ranges<By::registers>(shard, at, rows.size(), of_rows, b, c);
      is_exact = flush.is_exact();
    }
    if (!is_exact) add_ranges<By::elements>(shard, at, rows.size(), of_rows, b, c);
    return depth;
  }

 private:
  enum class By { registers, elements };  // elements: by the functions of pair_order.hpp
  // A call, see FlushToZero.
  template <By by>
  [[gnu::noinline]] void add_ranges(int shard, index_t at, index_t rows, const float* a, const float* b,
                                    float* c) const {
    std::fill(c, c + round_up(rows, tile_rows) * width, 0.0F);
    for_each_range(order, shard, [&](const Range& range) {
      for (index_t done = 0; done < range.size(); done += depth_of_piece) {
        const index_t end = std::min(range.size(), done + depth_of_piece);
        for (index_t i = 0; i < rows; i += tile_rows) {
          for (index_t first = done; first < end; first += pair_terms) {
            const index_t terms = std::min(pair_terms, end - first);
            const float* const of_a = a + i * p.k + (at + first) * tile_rows;
            const float* const of_b = b + (at + first) * width;
            if constexpr (by == By::registers)
              add_tile(terms, of_a, of_b, c + i * width);
            else
              add_elements(terms, of_a, of_b, c + i * width);
          }
        }
      }
      at += range.size();
    });
  }

  static void add_tile(index_t terms, const float* a, const float* b, float* c) {
    using Vec = Register<float>;
    alignas(vector_bytes) float sums[2][tile_rows * width];
    for (index_t parity = 0; parity < 2; ++parity) {
      const index_t count = (terms + 1 - parity) / 2;
      tile_kernel<row_registers, float>(count, {a + parity * tile_rows, 1, 2 * tile_rows}, b + parity * width,
                                        2 * width, sums[parity], width, false);
      if (count == pair_terms / 2) continue;
      for (float& sum : sums[parity]) sum += 0.0F;  // zeros that fill the tile up make 0 of -0, a flushed product
    }
    for (index_t at = 0; at < tile_rows * width; at += register_width<float>) {
      const Vec pair{Vec::load(sums[0] + at).of + Vec::load(sums[1] + at).of};
      Vec{Vec::load(c + at).of + pair.of}.store(c + at);
    }
  }

  static void add_elements(index_t terms, const float* a, const float* b, float* c) {
    for (index_t r = 0; r < tile_rows; ++r) {
      for (index_t j = 0; j < width; ++j) {
        float& sum = c[r * width + j];
        sum = add_flushed(sum, sum_of_pairs(
                                   terms, [=](index_t k) { return a[k * tile_rows + r]; },
                                   [=](index_t k) { return b[k * width + j]; }));
      }
    }
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

  index_t sum(int shard, index_t at, Begin, Range rows, index_t columns, const bf16* a, const bf16* b, float* c) const {
    const index_t first = at;
    for_each_range(order_, shard, [&](const Range& terms) {
      const index_t depth = padded(terms), strip = depth * bf16_tiles::tile_extent;
      const bf16 *const of_a = a + at * block_rows, *const of_b = b + at * width;
      for (index_t j = 0; j < columns; j += block) {
        bf16_tiles::multiply_block(of_a + rows.begin * depth, strip, of_b + j * depth, strip, depth / pair_terms, c + j,
                                   width, at > first);
      }
      at += depth;
    });
    if (at == first) std::fill(c, c + rows.size() * width, 0.0F);
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
