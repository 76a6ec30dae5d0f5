#pragma once

// Operands of a block's products: tiles in shared memory, sums in registers.

#include "kernels/mma/fragments.hpp"

namespace nanotron::kernels::mma {

/// (row_count, width) of bf16 in shared memory. Chunks of 8 elements of a row change places with its number, so that
/// the 8 rows of a matrix lie in different banks.
template <int row_count, int width>
struct SharedTile {
  static constexpr int rows = row_count, columns = width;
  static constexpr int row_bytes = columns * static_cast<int>(sizeof(bf16)), bytes = rows * row_bytes;
  SharedAddress first;

  /// Rows 0 ... count - 1 of `from` (rows of `head_dim` elements, `leading` apart), zeros after them. Seen after
  /// wait_for_copies and a barrier.
  template <int threads>
  NANOTRON_FUNCTION void start_load(const bf16* from, index_t leading, index_t count, index_t head_dim) const {
    constexpr int chunks = columns / 8, rows_of_pass = threads / chunks;
    static_assert(threads % chunks == 0 && rows_of_pass % 8 == 0 && rows % rows_of_pass == 0);
    const int filled = count < rows ? static_cast<int>(count) : rows;
    for (int kept = 0; kept < kept_threads<threads>(); ++kept) {
      const int row = thread_of(kept) / chunks, chunk = thread_of(kept) % chunks;
      const int there = 8 * chunk < head_dim ? filled : 0;
      const bf16* next = from + row * leading + 8 * chunk;
      const SharedAddress to = first + (row * row_bytes + 16 * (chunk ^ (row % 8)));
      NANOTRON_UNROLL
      for (int pass = 0; pass < rows; pass += rows_of_pass, next += rows_of_pass * leading) {
        const bool is_there = row + pass < there;
        start_copy(to + pass * row_bytes, is_there ? next : from, is_there);
      }
    }
  }

  /// A: 16 rows of each warp, its row tile r of row_tiles, columns column ... column + 15.
  template <int row_tiles, int threads>
  NANOTRON_FUNCTION void load_a(int r, int column, PerThread<Registers, threads>& to) const {
    load<false, true>([=](int thread) { return (thread / warp_size * row_tiles + r) * 16; },
                      [=](int) { return column; }, to);
  }
  /// Two B (16, 8) of the transposed tile: column + k x row + n; the second one's n from 8 on.
  template <int threads>
  NANOTRON_FUNCTION void load_transposed_b(int row, int column, PerThread<Registers, threads>& to) const {
    load<false, false>([=](int) { return row; }, [=](int) { return column; }, to);
  }
  /// Two B (16, 8): row + k x column + n.
  template <int threads>
  NANOTRON_FUNCTION void load_b(int row, int column, PerThread<Registers, threads>& to) const {
    load<true, true>([=](int) { return row; }, [=](int) { return column; }, to);
  }

  /// Four matrices of 8 x 8 from (first_row(thread), first_column(thread)) on: the second one is below the first, or
  /// beside it. As A: <false, true>, of the transposed tile <true, false>; as two B: <true, true>, of the transposed
  /// tile <false, false>.
  template <bool transposed, bool below_first, int threads, class R, class C>
  NANOTRON_FUNCTION void load(const R& first_row, const C& first_column, PerThread<Registers, threads>& to) const {
    PerThread<SharedAddress, threads> address;
    for (int kept = 0; kept < kept_threads<threads>(); ++kept) {
      const int thread = thread_of(kept), row = thread % 8, matrix = thread % warp_size / 8;
      const int below = below_first ? matrix % 2 : matrix / 2, beside = below_first ? matrix / 2 : matrix % 2;
      const int in_row = (16 * (beside ^ row)) ^ (first_column(thread) * static_cast<int>(sizeof(bf16)));
      address.of[kept] = first + ((first_row(thread) + 8 * below + row) * row_bytes + in_row);
    }
    load_matrices<transposed>(address, to);
  }
};

/// Sums of each warp, in registers: `row_tiles` times 16 rows, `columns` columns.
template <int columns, int row_tiles, int threads>
struct SumTile {
  static constexpr int parts = columns / 8;
  PerThread<Sums, threads> part[row_tiles][parts];

  NANOTRON_FUNCTION void clear() {
    for_each([](int, int, int, float& x) { x = 0.0f; });
  }

  /// f(kept thread, which of its rows, column, sum); see row_of.
  template <class F>
  NANOTRON_FUNCTION void for_each(const F& f) {
    for_each_with(*this, [&](int kept, int row, int column, float& x, float) { f(kept, row, column, x); });
  }

  /// f(kept thread, which of its rows, column, sum, sum of the other tile).
  template <class F>
  NANOTRON_FUNCTION void for_each_with(const SumTile& other, const F& f) {
    for (int kept = 0; kept < kept_threads<threads>(); ++kept) {
      const int t = thread_of(kept) % 4;
      NANOTRON_UNROLL
      for (int r = 0; r < row_tiles; ++r) {
        NANOTRON_UNROLL
        for (int p = 0; p < parts; ++p) {
          NANOTRON_UNROLL
          for (int i = 0; i < 4; ++i) {
            f(kept, 2 * r + i / 2, 8 * p + 2 * t + i % 2, part[r][p].of[kept].c[i], other.part[r][p].of[kept].c[i]);
          }
        }
      }
    }
  }

  /// Columns 16 n ... 16 n + 15 of row tile r rounded, as A.
  NANOTRON_FUNCTION PerThread<Registers, threads> rounded(int r, int n) const {
    PerThread<Registers, threads> a;
    for (int kept = 0; kept < kept_threads<threads>(); ++kept) {
      const float *const left = part[r][2 * n].of[kept].c, *const right = part[r][2 * n + 1].of[kept].c;
      a.of[kept] = {
          {pack(left[0], left[1]), pack(left[2], left[3]), pack(right[0], right[1]), pack(right[2], right[3])}};
    }
    return a;
  }

  /// += A B^T: the warp's rows of a, rows b_row ... b_row + columns - 1 of b.
  template <class A, class B>
  NANOTRON_FUNCTION void add_product(const A& a, const B& b, int b_row) {
    static_assert(A::columns == B::columns && A::rows == threads / warp_size * 16 * row_tiles);
    NANOTRON_UNROLL
    for (int k = 0; k < A::columns; k += 16) {
      PerThread<Registers, threads> left[row_tiles], right;
      NANOTRON_UNROLL
      for (int r = 0; r < row_tiles; ++r) a.template load_a<row_tiles>(r, k, left[r]);
      NANOTRON_UNROLL
      for (int n = 0; n < columns; n += 16) {
        b.load_transposed_b(b_row + n, k, right);
        multiply_by(left, right, n);
      }
    }
  }

  /// += A B over `depth` terms: load_a(r, k, registers) and load_b(k, n, registers) have those from term k on. Of
  /// narrower terms k counts pairs.
  template <int depth, class Terms = Bf16Terms, class LoadA, class LoadB>
  NANOTRON_FUNCTION void add_terms(const LoadA& load_a, const LoadB& load_b) {
    NANOTRON_UNROLL
    for (int k = 0; k < depth; k += 16) {
      PerThread<Registers, threads> left[row_tiles], right;
      NANOTRON_UNROLL
      for (int r = 0; r < row_tiles; ++r) load_a(r, k, left[r]);
      NANOTRON_UNROLL
      for (int n = 0; n < columns; n += 16) {
        load_b(k, n, right);
        multiply_by<Terms>(left, right, n);
      }
    }
  }

  /// += A B: a rounded, rows b_row ... b_row + depth - 1 of b, which has `columns` columns.
  template <int depth, class B>
  NANOTRON_FUNCTION void add_product(const SumTile<depth, row_tiles, threads>& a, const B& b, int b_row) {
    static_assert(B::columns == columns);
    NANOTRON_UNROLL
    for (int k = 0; k < depth; k += 16) {
      PerThread<Registers, threads> left[row_tiles], right;
      NANOTRON_UNROLL
      for (int r = 0; r < row_tiles; ++r) left[r] = a.rounded(r, k / 16);
      NANOTRON_UNROLL
      for (int n = 0; n < columns; n += 16) {
        b.load_b(b_row + k, n, right);
        multiply_by(left, right, n);
      }
    }
  }

 private:
  template <class Terms = Bf16Terms>
  NANOTRON_FUNCTION void multiply_by(const PerThread<Registers, threads>* left,
                                     const PerThread<Registers, threads>& right, int n) {
    NANOTRON_UNROLL
    for (int r = 0; r < row_tiles; ++r) {
      multiply<0>(Terms{}, left[r], right, part[r][n / 8]);
      multiply<2>(Terms{}, left[r], right, part[r][n / 8 + 1]);
    }
  }
};

/// The row in the block's tile of a thread's row `which` < 2 row_tiles of a SumTile.
template <int row_tiles>
NANOTRON_FUNCTION int row_of(int thread, int which) {
  return (thread / warp_size * row_tiles + which / 2) * 16 + thread % warp_size / 4 + 8 * (which % 2);
}

/// Rows 0 ... count - 1, columns 0 ... head_dim - 1 (even) of the block's tile, to rows `leading` apart.
template <int columns, int row_tiles, int threads>
NANOTRON_FUNCTION void store_rounded(const SumTile<columns, row_tiles, threads>& sums, bf16* to, index_t leading,
                                     index_t count, index_t head_dim) {
  for (int kept = 0; kept < kept_threads<threads>(); ++kept) {
    const int thread = thread_of(kept);
    NANOTRON_UNROLL
    for (int r = 0; r < 2 * row_tiles; ++r) {
      const index_t row = row_of<row_tiles>(thread, r);
      if (row >= count) continue;
      NANOTRON_UNROLL
      for (int p = 0; p < columns / 8; ++p) {
        const int column = 8 * p + 2 * (thread % 4);
        if (column >= head_dim) continue;
        const float* const pair = sums.part[r / 2][p].of[kept].c + 2 * (r % 2);
        const std::uint32_t both = pack(pair[0], pair[1]);
        std::memcpy(static_cast<void*>(to + row * leading + column), &both, sizeof both);
      }
    }
  }
}

}  // namespace nanotron::kernels::mma
