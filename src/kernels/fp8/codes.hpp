#pragma once

// Scales and the writing of codes: what the kernels that quantise share. Private to kernels.

#include "kernels/loop/tile.hpp"
#include "nanotron/kernels/fp8/quantise.hpp"

namespace nanotron::kernels {

/// *scale from the maxima of the rows, see quantise.hpp.
template <class E>
void choose_scale(Device& device, Vector<const float> maxima, float* scale);

inline constexpr index_t fp8_word = 4;  // codes written at once

/// From and to addresses that are multiples of a word.
template <class E>
NANOTRON_FUNCTION void store_word(E* to, const void* codes) {
  void* const target = to;
  std::memcpy(__builtin_assume_aligned(target, fp8_word), __builtin_assume_aligned(codes, fp8_word), fp8_word);
}

/// Where a tile of codes goes. Extents are those of the matrix, with its padding.
template <class E>
struct TileOfCodes {
  E *by_rows, *by_columns;  // null where a layout is not asked for
  index_t rows, columns, padded_rows, padded_columns, leading;

  NANOTRON_FUNCTION TileOfCodes first_columns(index_t n) const {
    TileOfCodes first = *this;
    first.columns = first.padded_columns = n;
    return first;
  }
  /// Codes of rows r and columns c, c + 1, ...: by rows, and into the bytes of the tile that begins at (row0, column0).
  NANOTRON_FUNCTION void put(std::uint8_t* bytes, index_t row0, index_t column0, index_t r, index_t c,
                             const std::uint8_t* codes) const {
    for (index_t j = 0; j < fp8_word; ++j) bytes[(c - column0 + j) * tile_stride + r - row0] = codes[j];
    if (by_rows != nullptr && r < rows && c < padded_columns) store_word(by_rows + r * leading + c, codes);
  }
  /// The tile by columns, after all of its codes.
  template <class R>
  NANOTRON_FUNCTION void transpose(const R& row, const std::uint8_t* bytes, index_t row0, index_t column0) const {
    if (by_columns == nullptr) return;
    const TileOfCodes self = *this;
    row.for_each(tile_width * tile_width / fp8_word, [=](const index_t i) {
      const index_t c = i / (tile_width / fp8_word), r = i % (tile_width / fp8_word) * fp8_word;
      if (column0 + c >= self.columns || row0 + r >= self.padded_rows) return;
      store_word(self.by_columns + (column0 + c) * self.padded_rows + row0 + r, bytes + c * tile_stride + r);
    });
  }
};

template <class E>
TileOfCodes<E> tile_of_codes(const Fp8Matrix<E>& y, index_t rows, index_t columns) {
  return {y.rows.extent(0) > 0 ? y.rows.data() : nullptr,
          y.columns.extent(0) > 0 ? y.columns.data() : nullptr,
          rows,
          columns,
          fp8_padded(rows),
          fp8_padded(columns),
          fp8_padded(columns)};
}

}  // namespace nanotron::kernels
