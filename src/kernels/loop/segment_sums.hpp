#pragma once

// Sums over rows, column by column, in a fixed order: rows are cut into segments and these into pieces, whose sums are
// kept apart. Sums of pieces are added in order, those of segments in a binary tree (tensor/sum_order.hpp).

#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/tensor/sum_order.hpp"

namespace nanotron::kernels {

// On the host a piece's sums stay in the first-level cache, so there are only as many as cores may want; a GPU wants
// one a multiprocessor.
inline constexpr index_t pieces_of_segment = on_host ? 16 : 128;

// out(c) += sum of partial (segments, pieces_of_segment, width).
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
