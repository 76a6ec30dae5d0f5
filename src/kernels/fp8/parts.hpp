#pragma once

// Codes of a matrix, 128 x 128 values at a time, with scales of their own: on the host one core takes a part, on a GPU
// a team, with the values in fast memory. Private to kernels.

#include "kernels/fp8/codes.hpp"
#include "kernels/loop/maxima.hpp"
#include "nanotron/kernels/fp8/blocks.hpp"

namespace nanotron::kernels {

/// The values and, of each row and column, the maximum, then the scale.
struct PartValues {
  static constexpr index_t stride = fp8_block + 2;  // columns in different banks
  bf16 value[fp8_block * stride];
  float of_row[fp8_block], of_column[fp8_block];
};

/// Rows `first` ... first + count - 1 of a matrix; number: of the tile of rows, group by group.
struct PartRows {
  index_t group = 0, first = 0, count = 0, number = 0;
};

/// A matrix as tiles of rows; those of groups begin again at the first row of each.
struct PartsOfMatrix {
  const bf16* from;
  index_t rows, columns, row_tiles;
  const std::int64_t* begin = nullptr;  // (groups + 1); null: one group of all rows
  index_t groups = 1;

  NANOTRON_FUNCTION PartRows operator()(index_t number) const {
    index_t tile = number;
    for (index_t g = 0; g < groups; ++g) {
      const index_t first = begin != nullptr ? begin[g] : 0, end = begin != nullptr ? begin[g + 1] : rows;
      const index_t here = fp8_blocks(end - first);
      if (tile < here) {
        const index_t at = first + tile * fp8_block;
        return {g, at, end - at < fp8_block ? end - at : fp8_block, number};
      }
      tile -= here;
    }
    return {};
  }
};

/// Where codes and scales go. The codes by columns of tile t of rows begin at 128 t.
template <class E>
struct PartsOfCodes {
  E *by_rows, *by_columns;  // null where a layout is not asked for
  float *row_scales, *column_scales;
  index_t columns, padded_columns, padded_rows;  // extents of the codes: (rows, padded columns), (columns, padded rows)
  Fp8Scaling scaling;
  Fp8ScaleLayout of_rows, of_columns;

  PartsOfCodes(const Fp8Matrix<E>& y, index_t rows, index_t columns_, index_t padded_rows_)
      : by_rows(y.rows.extent(0) > 0 ? y.rows.data() : nullptr),
        by_columns(y.columns.extent(0) > 0 ? y.columns.data() : nullptr),
        row_scales(y.scale),
        column_scales(y.column_scales),
        columns(columns_),
        padded_columns(fp8_padded(columns_)),
        padded_rows(padded_rows_),
        scaling(y.scaling),
        of_rows(y.scaling, rows, columns_),
        of_columns(y.scaling, columns_, padded_rows_) {}

  /// The maxima become scales, those of blocks all the same, and are stored; a scale of a tensor is there.
  template <class R>
  NANOTRON_FUNCTION void choose_scales(const R& row, PartValues& part, const PartRows& rows, index_t column0) const {
    const PartsOfCodes self = *this;
    PartValues* const p = &part;
    float all = 0.0f;
    if (scaling == Fp8Scaling::blocks)
      all = row.template max<float>(fp8_block, 0.0f, [=](const index_t i) { return p->of_row[i]; });
    row.for_each(fp8_block, [=](const index_t i) {
      if (self.scaling == Fp8Scaling::tensor) {
        p->of_row[i] = p->of_column[i] = self.row_scales[rows.group];
        return;
      }
      const bool is_block = self.scaling == Fp8Scaling::blocks;
      const float of_row = ldexpf(1.0f, -exponent_for<E>(is_block ? all : p->of_row[i]));
      const float of_column = ldexpf(1.0f, -exponent_for<E>(is_block ? all : p->of_column[i]));
      p->of_row[i] = of_row;
      p->of_column[i] = of_column;
      if (self.by_rows != nullptr && i < rows.count)
        self.row_scales[self.of_rows(rows.first + i, column0 / fp8_block)] = of_row;
      if (self.by_columns != nullptr && column0 + i < self.columns)
        self.column_scales[self.of_columns(column0 + i, rows.number)] = of_column;
    });
  }
  template <class R>
  NANOTRON_FUNCTION void store(const R& row, const PartValues& part, const PartRows& rows, index_t column0) const {
    constexpr index_t words = fp8_block / fp8_word;
    const PartsOfCodes self = *this;
    const PartValues* const p = &part;
    const auto put = [=](E* to, index_t r, index_t dr, index_t c, index_t dc, const float* scales) {
      alignas(fp8_word) std::uint8_t codes[fp8_word];
      for (index_t j = 0; j < fp8_word; ++j) {
        const index_t at = (r + j * dr) * PartValues::stride + c + j * dc;
        codes[j] = E::code_of(static_cast<float>(p->value[at]) * (1.0f / scales[dr != 0 ? c : r]));
      }
      store_word(to, codes);
    };
    if (by_rows != nullptr) {
      row.for_each(fp8_block * words, [=](const index_t i) {
        const index_t r = i / words, c = i % words * fp8_word;
        if (r >= rows.count || column0 + c >= self.padded_columns) return;
        put(self.by_rows + (rows.first + r) * self.padded_columns + column0 + c, r, 0, c, 1, p->of_row);
      });
    }
    if (by_columns == nullptr) return;
    row.for_each(fp8_block * words, [=](const index_t i) {
      const index_t c = i / words, r = i % words * fp8_word, at = rows.number * fp8_block + r;
      if (column0 + c >= self.columns || at >= self.padded_rows) return;
      put(self.by_columns + (column0 + c) * self.padded_rows + at, r, 1, c, 0, p->of_column);
    });
  }
};

/// Zeros where the part reaches beyond the matrix; the maxima.
template <class R>
NANOTRON_FUNCTION void load_part(const R& row, const PartsOfMatrix& x, const PartRows& rows, index_t column0,
                                 PartValues& part) {
  PartValues* const p = &part;
  const bf16* const from = x.from + rows.first * x.columns + column0;
  const index_t width = x.columns - column0, leading = x.columns;
  row.for_each(fp8_block * fp8_block, [=](const index_t i) {
    const index_t r = i / fp8_block, c = i % fp8_block;
    p->value[r * PartValues::stride + c] = r < rows.count && c < width ? from[r * leading + c] : bf16(0.0f);
  });
  row.for_each(2 * fp8_block, [=](const index_t i) {
    const bool of_row = i < fp8_block;
    const index_t step = of_row ? 1 : PartValues::stride;
    const bf16* const at = p->value + (of_row ? i * PartValues::stride : i - fp8_block);
    float most = 0.0f;
    for (index_t j = 0; j < fp8_block; ++j) {
      const float size = abs_or_infinity(at[j * step]);
      most = most < size ? size : most;
    }
    (of_row ? p->of_row[i] : p->of_column[i - fp8_block]) = most;
  });
}

/// The work on one part.
template <class E>
struct QuantisePart {
  PartsOfMatrix x;
  PartsOfCodes<E> y;

  template <class R>
  NANOTRON_FUNCTION void operator()(const R& row, PartValues& part, const index_t i) const {
    const index_t columns = fp8_blocks(x.columns), column0 = i % columns * fp8_block;
    const PartRows rows = x(i / columns);
    if (rows.count == 0) return;
    load_part(row, x, rows, column0, part);
    y.choose_scales(row, part, rows, column0);
    y.store(row, part, rows, column0);
  }
};

template <class E>
void for_each_part(const Device& device, const char* label, const PartsOfMatrix& x, const PartsOfCodes<E>& y) {
  if (device.is_planning()) return device.launch_planned();
  const QuantisePart<E> quantise{x, y};
  const index_t parts = x.row_tiles * fp8_blocks(x.columns);
  if constexpr (on_host) {
    Kokkos::parallel_for(kept_label<QuantisePart<E>>(label), RangePolicy(device.exec(), 0, parts),
                         [=](const index_t i) {
                           static thread_local PartValues part;
                           quantise(HostRow{}, part, i);
                         });
  } else {
    TeamPolicy policy = team_policy(device, parts);
    policy.set_scratch_size(0, Kokkos::PerTeam(sizeof(PartValues)));
    Kokkos::parallel_for(
        kept_label<QuantisePart<E>>(label), policy, KOKKOS_LAMBDA(const TeamPolicy::member_type& team) {
          auto* const part = static_cast<PartValues*>(team.team_scratch(0).get_shmem(sizeof(PartValues)));
          quantise(TeamRow{team}, *part, team.league_rank());
        });
  }
}

}  // namespace nanotron::kernels
