#pragma once

// The backward of a norm on a GPU. A thread has the same 16 bytes of all rows of its team's piece: dy and x stay in its
// registers from the sums over a row to the row's gradient, and the sums over rows until the piece is done, so that
// each operand is read once. The next row is loaded while this one is summed. Private to kernels/norm.
//
// A norm says of one row (rms_norm.cpp, layer_norm.cpp):
//
//   dots, column_sums         how many sums over the row, and over rows
//   max_threads              for which a thread has registers enough
//   of(statistics, row)       what its forward kept
//   dots_of(dy, x, s)         of a chunk, to be summed over the row
//   take(dots, width)         these sums
//   gradient(dy, x, s)        what is added to an element of dx
//   add(sums, k, dy, x)       to element k of the sums over rows

#include "kernels/loop/segment_sums.hpp"
#include "kernels/norm/scale.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

/// A chunk of T as it is in memory.
template <class T>
struct StoredChunk {
  static constexpr int n = static_cast<int>(16 / sizeof(T));
  chunk_detail::Words words;

  NANOTRON_FUNCTION static StoredChunk at(const T* from) {
    return {*reinterpret_cast<const chunk_detail::Words*>(from)};
  }
  NANOTRON_FUNCTION Chunk<master_t<T>, n> wide() const {
    T elements[n];
    std::memcpy(elements, &words, sizeof elements);
    return chunk(Width<n>{}, [&](const int k) { return static_cast<master_t<T>>(elements[k]); });
  }
};

/// dx + a, or a.
template <class T>
struct Accumulated {
  template <int n>
  NANOTRON_FUNCTION static Chunk<master_t<T>, n> before(const T* dx, Width<n> width) {
    return load(dx, width);
  }
  NANOTRON_FUNCTION static void fetch(StoredChunk<T>& held, const T* dx) { held = StoredChunk<T>::at(dx); }
  template <class M>
  NANOTRON_FUNCTION static M add(M before, M a) {
    return before + a;
  }
};
template <class T>
struct Overwritten {
  template <int n>
  NANOTRON_FUNCTION static Chunk<master_t<T>, n> before(const T*, Width<n>) {
    return {};
  }
  NANOTRON_FUNCTION static void fetch(StoredChunk<T>&, const T*) {}
  template <class M>
  NANOTRON_FUNCTION static M add(M, M a) {
    return a;
  }
};

/// Rows (token, head): those of a piece, one after the other. In 32 bits, as registers are few.
struct HeadRows {
  index_t token;
  int first_head, end_head, head, left;
  NANOTRON_FUNCTION void advance() {
    --left;
    if (++head < end_head) return;
    head = first_head;
    ++token;
  }
  template <class Operand>
  NANOTRON_FUNCTION auto of(const Operand& x, index_t width) const {
    return x.data + token * x.leading + head * width;
  }
};

/// dx, Accumulated or Overwritten, and the sums over the rows of each piece, (pieces, column_sums x width).
template <class T, class Norm, class Dx, class Scale>
struct HeldBackward {
  using M = master_t<T>;
  using Stored = StoredChunk<T>;
  static constexpr int n = Stored::n, max_threads = Norm::max_threads;
  static constexpr Width<n> whole{};
  using Policy = Kokkos::TeamPolicy<ExecutionSpace, Kokkos::LaunchBounds<max_threads, 1>>;
  using Team = typename Policy::member_type;
  struct Columns {
    Stored dy, x, dx, next_dy, next_x;
    Chunk<M, n> sums[Norm::column_sums];
  };

  MatrixRef<const T> dy, x;
  MatrixRef<T> dx;
  index_t groups, width;  // heads of a row, elements of a head
  Scale scale;
  const M* statistics;
  M* sums;
  RowPieces pieces;
  index_t heads, head_parts;  // of a segment; segments side by side

  /// False, and nothing is done, where rows cannot be held: chunks that are not whole, or not at multiples of 16 bytes,
  /// or more of them than threads.
  bool launch(const Device& device, const char* label) const {
    const auto is_aligned = [](const auto& m) { return chunk_detail::is_aligned(m.data) && m.leading % n == 0; };
    if (width % n != 0 || width > max_threads * n) return false;
    if (!is_aligned(dy) || !is_aligned(x) || !is_aligned(dx)) return false;
    const int warps = static_cast<int>((width / n + gpu_warp_size - 1) / gpu_warp_size);
    if (device.is_planning()) {
      device.launch_planned();
    } else {
      Kokkos::parallel_for(kept_label<HeldBackward>(label),
                           Policy(device.exec(), static_cast<int>(pieces.count()), gpu_warp_size * warps), *this);
    }
    return true;
  }

  KOKKOS_FUNCTION void operator()(const Team& team) const {
#if defined(NANOTRON_ON_GPU)
    Columns own[1] = {};
#else
    Columns own[max_threads] = {};  // a team is one thread
#endif
    const auto each = [&](const auto& f) {
      for (Columns& c : own) {
        const int at = (team.team_rank() + static_cast<int>(&c - own) * team.team_size()) * n;
        if (at < width) f(c, at);
      }
    };
    HeadRows rows = rows_of(team.league_rank());
    Norm next{};
    const auto load_next = [&] {
      next = Norm::of(statistics, rows.token * groups + rows.head);
      each([&](Columns& c, const int at) {
        c.next_dy = Stored::at(rows.of(dy, width) + at);
        c.next_x = Stored::at(rows.of(x, width) + at);
      });
    };
    if (rows.left > 0) load_next();
    while (rows.left > 0) {
      Norm norm = next;
      T* const target = rows.of(dx, width);
      Chunk<M, Norm::dots> dots{};
      each([&](Columns& c, const int at) {
        c.dy = c.next_dy;
        c.x = c.next_x;
        Dx::fetch(c.dx, target + at);
        dots += norm.dots_of(c.dy.wide(), c.x.wide(), scale.at(at, whole));
      });
      rows.advance();
      if (rows.left > 0) load_next();
      norm.take(TeamRow{team}.sum_of_threads(dots), width);
      each([&](Columns& c, const int at) {
        const auto g = c.dy.wide(), value = c.x.wide(), before = c.dx.wide(), w = scale.at(at, whole);
        for (int k = 0; k < n; ++k) norm.add(c.sums, k, g[k], value[k]);
        store(target + at, whole, [&](const int k) { return Dx::add(before[k], norm.gradient(g[k], value[k], w[k])); });
      });
    }
    M* const of_piece = sums + team.league_rank() * Norm::column_sums * width;
    each([&](Columns& c, const int at) {
      for (int s = 0; s < Norm::column_sums; ++s) {
        store(of_piece + s * width + at, whole, [&](const int k) { return c.sums[s][k]; });
      }
    });
  }

 private:
  NANOTRON_FUNCTION HeadRows rows_of(index_t piece) const {
    const index_t part = piece / pieces.pieces, first_head = part % head_parts * heads;
    const Range range = pieces.of(piece);
    const index_t first = range.begin - pieces.first_of(part);
    const index_t first_token = pieces.first_of(part - part % head_parts) / groups;
    return {first_token + first / heads, static_cast<int>(first_head), static_cast<int>(first_head + heads),
            static_cast<int>(first_head + first % heads), static_cast<int>(range.size())};
  }
};

}  // namespace nanotron::kernels
