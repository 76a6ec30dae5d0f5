#pragma once

// Scales and the writing of codes: what the kernels that quantise share. Private to kernels.

#include <cmath>
#include <limits>

#include "nanotron/kernels/fp8/quantise.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

inline constexpr float greatest = std::numeric_limits<float>::max();

/// e of quantise.hpp: amax = f 2^a with f in [0.5, 1); the largest value is 0.875 2^top. 2^e and 2^-e are normal
/// floats.
template <class E>
NANOTRON_FUNCTION int exponent_for(float amax) {
  constexpr int max_exponent = 126;
  if (!(amax > 0.0f) || !(amax <= greatest)) return 0;
  int above = 0;
  const float fraction = frexpf(amax, &above);
  const int e = E::top - above - (fraction > 0.875f ? 1 : 0);
  return e > max_exponent ? max_exponent : e < -max_exponent ? -max_exponent : e;
}

// Loops over square tiles of a matrix that is transposed: on the host one core takes a tile, on a GPU a team, with the
// tile's bytes in fast memory. Private to kernels.

inline constexpr index_t tile_width = 64;
inline constexpr index_t tile_stride = tile_width + 4;  // bytes: keeps columns of a tile in different banks
inline constexpr std::size_t tile_bytes = tile_width * tile_stride;

/// Rows and columns of tiles.
struct TileGrid {
  index_t rows, columns;
  NANOTRON_FUNCTION TileGrid(index_t r, index_t c)
      : rows((r + tile_width - 1) / tile_width), columns((c + tile_width - 1) / tile_width) {}
  NANOTRON_FUNCTION index_t first_row(index_t tile) const { return tile / columns * tile_width; }
  NANOTRON_FUNCTION index_t first_column(index_t tile) const { return tile % columns * tile_width; }
};

/// f(row, bytes, tile) for all tiles; row: loops within the tile (loop/row.hpp), bytes: of `parts` tiles, 1 or 2,
/// aligned to a word.
template <class F>
void for_each_tile(const Device& device, const char* label, const TileGrid& grid, std::size_t parts, const F& f) {
  if (device.is_planning()) return device.launch_planned();
  const index_t tiles = grid.rows * grid.columns;
  if constexpr (on_host) {
    Kokkos::parallel_for(kept_label<F>(label), RangePolicy(device.exec(), 0, tiles), [=](const index_t i) {
      alignas(16) std::uint8_t bytes[2 * tile_bytes];
      f(HostRow{}, bytes, i);
    });
  } else {
    const std::size_t bytes_of_tiles = parts * tile_bytes;
    TeamPolicy policy = team_policy(device, tiles);
    policy.set_scratch_size(0, Kokkos::PerTeam(bytes_of_tiles));
    Kokkos::parallel_for(
        kept_label<F>(label), policy, KOKKOS_LAMBDA(const TeamPolicy::member_type& team) {
          auto* const bytes = static_cast<std::uint8_t*>(team.team_scratch(0).get_shmem(bytes_of_tiles));
          f(TeamRow{team}, bytes, team.league_rank());
        });
  }
}

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
