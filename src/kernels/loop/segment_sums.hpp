#pragma once

// Sums over rows, column by column, in a fixed order. Rows are split into segments, segments into pieces; each piece
// has its own sum. Pieces of a segment are added in order, segments in a binary tree (tensor/sum_order.hpp).

#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/tensor/sum_order.hpp"

namespace nanotron::kernels {

// Enough pieces for the cores of a host, whose L1 cache holds the sums of a piece; on a GPU about one per
// multiprocessor.
inline constexpr index_t pieces_of_segment = on_host ? 16 : 128;

// out(c) += sum over s, p of partial(s, p, c); partial (segments, pieces_of_segment, width).
template <class M>
void add_segment_sums(Device& device, const M* partial, index_t segments, index_t width, M* out) {
  for_each_element(
      device, "segment_sums", width, KOKKOS_LAMBDA(const index_t c) {
        M stack[TreeStack::depth] = {};
        const auto add = [&](int into, int from) { stack[into] += stack[from]; };
        TreeStack tree;
        for (index_t s = 0; s < segments; ++s) {
          M sum = 0;
          for (index_t piece = 0; piece < pieces_of_segment; ++piece) {
            sum += partial[(s * pieces_of_segment + piece) * width + c];
          }
          stack[tree.top()] = sum;
          tree.push(add);
        }
        tree.finish(add);
        out[c] += stack[0];
      });
}

}  // namespace nanotron::kernels
