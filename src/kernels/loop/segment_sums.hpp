#pragma once

// Sums over rows, column by column, in a fixed order. Rows are split into segments, whose sizes differ by one unit at
// most, the longer ones first as those of shard_range, or at given cuts; segments are split into pieces; each piece
// has its own sum. Pieces of a segment are added in order (on a GPU first in groups), segments in a binary tree
// (tensor/sum_order.hpp).

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/tensor/sum_order.hpp"

namespace nanotron::kernels {

// Pieces of a segment of `rows` rows of `width` elements: enough for the cores of a host, whose L1 cache holds the sums
// of a piece; on a GPU as many as keep it busy with the teams that rows of this width have, so that their sums are few.
inline constexpr index_t pieces_on_cpu = 16;
constexpr index_t pieces_of_segment(Processor processor, index_t rows, index_t width) {
  if (processor == Processor::cpu) return pieces_on_cpu;
  constexpr index_t min_rows = 16, elements = index_t{1} << 20;
  const index_t most = std::max<index_t>(512, elements / std::max<index_t>(width, 1));
  return std::clamp<index_t>(rows / min_rows, pieces_on_cpu, most);
}
/// Whose pieces a kernel has: with GemmMode::fixed_order those of a host, on every processor.
inline Processor pieces_on(const Device& device) {
  return device.gemm_mode() == GemmMode::fixed_order ? Processor::cpu : device.processor();
}

// The rows of a kernel, a team for each piece.
struct RowPieces {
  index_t segments, rows;              // rows: of the shortest segment
  index_t longer, unit;                // the first `longer` segments have `unit` rows more
  index_t pieces;                      // of a segment
  const std::int64_t* cuts = nullptr;  // (segments + 1), in MemorySpace: the segments are split there

  RowPieces(Processor processor, index_t segment_count, index_t all_rows, index_t width, index_t rows_of_unit = 1)
      : segments(segment_count),
        rows(all_rows / rows_of_unit / segment_count * rows_of_unit),
        longer(all_rows / rows_of_unit % segment_count),
        unit(rows_of_unit),
        pieces(pieces_of_segment(processor, rows, width)) {}
  index_t count() const { return segments * pieces; }
  NANOTRON_FUNCTION index_t first_of(index_t segment) const {
    if (cuts != nullptr) return cuts[segment];
    return segment * rows + (segment < longer ? segment : longer) * unit;
  }
  // Rows of piece `at` < count().
  NANOTRON_FUNCTION Range of(index_t at) const {
    const index_t segment = at / pieces, first = first_of(segment), held = first_of(segment + 1) - first;
    const index_t each = (held + pieces - 1) / pieces, begin = at % pieces * each, end = begin + each;
    return {first + (begin < held ? begin : held), first + (end < held ? end : held)};
  }
};

// f(row, i, sums) for i < rows; f adds to sums[0 .. count), which begin as zeros and end at out + i * count. On a GPU
// they are in the memory of a multiprocessor where that holds them.
template <class T, class F>
void for_each_row_with_sums(const Device& device, const char* label, index_t rows, index_t columns, master_t<T>* out,
                            index_t count, const F& f) {
  using M = master_t<T>;
  if (device.is_planning()) return device.launch_planned();
  if constexpr (on_host) {
    for_each_row(device, label, rows, [=](const HostRow& row, const index_t i) {
      M* const sums = out + i * count;
      row.for_each(count, [=](const index_t c) { sums[c] = 0; });
      f(row, i, sums);
    });
  } else {
    constexpr index_t most = 32768 / sizeof(M);  // of the 48 KiB that a block may have unasked
    const bool is_near = count <= most;
    using Near = Kokkos::View<M*, ExecutionSpace::scratch_memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
    TeamPolicy policy = team_policy(device, rows, team_threads<T>(columns));
    const RowOrder order = row_order(device);
    policy.set_scratch_size(0, Kokkos::PerTeam(is_near ? Near::shmem_size(count) : 0));
    Kokkos::parallel_for(
        kept_label<F>(label), policy, KOKKOS_LAMBDA(const TeamPolicy::member_type& team) {
          const TeamRow row{team, order};
          M* const target = out + team.league_rank() * count;
          M* const sums = is_near ? Near(team.team_scratch(0), count).data() : target;
          row.for_each(count, [=](const index_t c) { sums[c] = 0; });
          f(row, team.league_rank(), sums);
          if (is_near) row.for_each(count, [=](const index_t c) { target[c] = sums[c]; });
        });
  }
}

// The part of the workspace that is used.
template <class M>
Vector<M> sums_of_pieces(const char* kernel, const Vector<M>& workspace, index_t needed) {
  NANOTRON_REQUIRE(static_cast<index_t>(workspace.extent(0)) >= needed, "{}: a workspace of {}, needs {}", kernel,
                   workspace.extent(0), needed);
  return Vector<M>(workspace.data(), static_cast<std::size_t>(needed));
}

// Adds the pieces of a segment in groups, each into its first piece, where a GPU has many. The size of a group.
template <class M>
index_t add_groups_of_pieces(Device& device, M* partial, const RowPieces& rows, index_t width, index_t leading) {
  constexpr index_t most = 32;  // pieces that are added at once on a GPU
  const index_t pieces = rows.pieces, segments = rows.segments;
  const index_t group = device.processor() == Processor::gpu && pieces > most ? most : 1;
  if (group == 1) return group;
  const index_t groups = (pieces + group - 1) / group;
  for_each_element(
      device, "piece_sums", segments * groups * width, KOKKOS_LAMBDA(const index_t i) {
        const index_t at = i / width, first = at % groups * group, end = first + group;
        M* const sum = partial + (at / groups * pieces + first) * leading + i % width;
        M total = sum[0];
        for (index_t p = first + 1; p < (end < pieces ? end : pieces); ++p) total += sum[(p - first) * leading];
        sum[0] = total;
      });
  return group;
}

// out(c) += sum over segments s, pieces p of partial[(s * pieces + p) * leading + c]; partial is overwritten.
template <class M>
void add_segment_sums(Device& device, M* partial, const RowPieces& rows, index_t width, index_t leading, M* out) {
  const index_t pieces = rows.pieces, segments = rows.segments;
  const index_t group = add_groups_of_pieces(device, partial, rows, width, leading);
  for_each_element(
      device, "segment_sums", width, KOKKOS_LAMBDA(const index_t c) {
        M stack[TreeStack::depth] = {};
        const auto add = [&](int into, int from) { stack[into] += stack[from]; };
        TreeStack tree;
        for (index_t s = 0; s < segments; ++s) {
          // Constants on the host, whose loop over columns is vectorised.
          const index_t count = on_host ? pieces_on_cpu : pieces, step = on_host ? 1 : group;
          M sum = 0;
          for (index_t p = 0; p < count; p += step) sum += partial[(s * count + p) * leading + c];
          stack[tree.top()] = sum;
          tree.push(add);
        }
        tree.finish(add);
        out[c] += stack[0];
      });
}

// The sums of `each` neighbouring segments, a tree for each: the first segments / each rows of `partial`, whose rows of
// `width` elements are overwritten.
template <class M>
Matrix<M> fold_segments(Device& device, const Vector<M>& partial, const RowPieces& rows, index_t each, index_t width) {
  M* const data = partial.data();
  const index_t pieces = rows.pieces, trees = rows.segments / each;
  const index_t group = add_groups_of_pieces(device, data, rows, width, width);
  for_each_element(
      device, "folded_segments", width, KOKKOS_LAMBDA(const index_t c) {
        for (index_t t = 0; t < trees; ++t) {
          M stack[TreeStack::depth] = {};
          const auto add = [&](int into, int from) { stack[into] += stack[from]; };
          TreeStack tree;
          for (index_t s = t * each; s < (t + 1) * each; ++s) {
            M sum = 0;
            for (index_t p = 0; p < pieces; p += group) sum += data[(s * pieces + p) * width + c];
            stack[tree.top()] = sum;
            tree.push(add);
          }
          tree.finish(add);
          data[t * width + c] = stack[0];  // at or before the first row of its segments
        }
      });
  return Matrix<M>(data, trees, width);
}

}  // namespace nanotron::kernels
