#pragma once

// The products of tiles in the cache (attention_host.cpp), and in which order an element's terms are added.

#include "kernels/gemm/host/pair_tiles.hpp"
#include "kernels/loop/host_tiles.hpp"

namespace nanotron::kernels::detail {

// C (rows, columns) = [C +] A (rows, depth) B (depth, columns), as in tile_gemm: each element a chain of fma, or
// blocks of 32 terms (pair_order.hpp). query_tile: a multiple of tile_rows and of a block.
template <class M>
struct Chains {
  static constexpr index_t query_tile = 48;
  static void multiply(index_t rows, index_t columns, index_t depth, TileOperand<M> a, const M* b, index_t leading_b,
                       M* c, index_t leading_c) {
    tile_gemm<M>(rows, columns, depth, a, b, leading_b, c, leading_c, false);
  }
  static void add(index_t rows, index_t columns, index_t depth, TileOperand<M> a, const M* b, index_t leading_b, M* c,
                  index_t leading_c) {
    tile_gemm<M>(rows, columns, depth, a, b, leading_b, c, leading_c, true);
  }
};
struct Pairs {
  static constexpr index_t query_tile = 3 * pair_terms;
  static void multiply(index_t rows, index_t columns, index_t depth, TileOperand<float> a, const float* b,
                       index_t leading_b, float* c, index_t leading_c) {
    for (index_t r = 0; r < rows; ++r) std::fill_n(c + r * leading_c, columns, 0.0F);
    add(rows, columns, depth, a, b, leading_b, c, leading_c);
  }
  static void add(index_t rows, index_t columns, index_t depth, TileOperand<float> a, const float* b, index_t leading_b,
                  float* c, index_t leading_c) {
    add_pairs(rows, columns, depth, a, b, leading_b, c, leading_c);
  }
};
static_assert(Pairs::query_tile % tile_rows == 0);

// What probabilities are rounded to, and the products. In order: as on a GPU.
template <class T>
struct Ordinary {
  using M = master_t<T>;
  using P = M;
  using Sums = Chains<M>;
};
template <class T>
struct InOrder {
  using M = master_t<T>;
  using P = T;
  using Sums = std::conditional_t<std::is_same_v<T, bf16>, Pairs, Chains<M>>;
};

}  // namespace nanotron::kernels::detail
