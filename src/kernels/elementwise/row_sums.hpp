#pragma once

// Sums over the rows of a matrix, column by column, in the order of kernels/loop/segment_sums.hpp: gradients of biases.

#include "kernels/loop/segment_sums.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

// The same pieces for the columns of any share of the ranks.
inline RowPieces pieces_of_bias(Processor processor, index_t segments, index_t rows) {
  constexpr index_t any_width = 1024;
  return RowPieces(processor, segments, rows, any_width);
}

// sums(c) += sum over rows of y(r, c). workspace: see bias_workspace_size.
template <class T>
void add_row_sums(Device& device, const MatrixRef<const T>& y, const RowPieces& pieces, const Vector<master_t<T>>& sums,
                  const Vector<master_t<T>>& workspace) {
  using M = master_t<T>;
  const index_t width = y.columns, needed = bias_workspace_size(device.processor(), y.rows, width, pieces.segments);
  const auto partial = sums_of_pieces("bias_backward", workspace, needed);
  const KernelRegion kernel(device, "bias_backward", reads(y, partial), writes(sums, partial));
  for_each_row_with_sums<T>(
      device, "bias_backward", pieces.count(), width, partial.data(), width,
      KOKKOS_LAMBDA(const Row& row, const index_t at, M* const of_piece) {
        const Range rows = pieces.of(at);
        for (index_t i = rows.begin; i < rows.end; ++i) {
          const T* const source = y.data + i * y.leading;
          row.template for_each_chunk<T>(width, [=](const index_t c, const auto n) {
            const auto value = load(source + c, n);
            const auto so_far = load(of_piece + c, n);
            store(of_piece + c, n, [&](const int k) { return so_far[k] + value[k]; });
          });
        }
      });
  add_segment_sums<M>(device, partial.data(), pieces, width, width, sums.data());
}

}  // namespace nanotron::kernels
