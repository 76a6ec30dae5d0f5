#pragma once

// Loops over square tiles of a matrix that is transposed: on the host one core takes a tile, on a GPU a team, with the
// tile's bytes in fast memory. Private to kernels.

#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

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

}  // namespace nanotron::kernels
