#pragma once

// Maps the router's assignments (routing.hpp) to rows sorted by expert, and copies values between the two. Assignments
// and rows are int64: they are also sent.

#include <cstdint>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/sum_order.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// counts (sequences, experts) <- how often each expert is chosen.
void count_assignments(Device& device, index_t top_k, Vector<const std::int64_t> assignments,
                       Matrix<std::int64_t> counts);

/// rows(assignment) <- no_row for assignments without an expert, else 0 for those in `own` and row_of_other_rank for
/// others (routing.hpp); sources <- 0: rows without an assignment are then read from a token.
void mark_routed(Device& device, Vector<const std::int64_t> assignments, const Range& own, Vector<std::int64_t> rows,
                 Vector<std::int64_t> sources);

/// Assignments per stretch, which is counted serially, and the number of stretches of n assignments.
inline constexpr index_t assignments_of_stretch = 256;
constexpr index_t stretches_of(index_t n) { return (n + assignments_of_stretch - 1) / assignments_of_stretch; }

/// Numbers the assignments with rows(assignment) >= 0 on entry, sorted by expert and then by token: rows(assignment) <-
/// row, sources(row) <- assignment, counts (experts) <- rows per expert. Other elements of rows and sources are not
/// written. stretches, at least (stretches_of(assignments), experts), is overwritten.
void assign_rows(Device& device, Vector<const std::int64_t> assignments, Vector<std::int64_t> rows,
                 Vector<std::int64_t> sources, Vector<std::int64_t> counts, Matrix<std::int64_t> stretches);

/// begin (experts + 1) <- the first row of each expert, and the end of the last one's, for counts (ranks, experts x
/// parts) of rows that are sorted by expert.
void expert_offsets(Device& device, Matrix<const std::int64_t> counts, index_t parts, Vector<std::int64_t> begin);

/// Where rows that arrive in messages belong among those sorted by expert. counts (ranks, experts, parts): rows of each
/// block, in the order of the messages. places(row in the messages) <- its row in the order (expert, part, rank).
/// places has a row for each counted one.
void find_places(Device& device, Vector<const std::int64_t> counts, index_t experts, index_t parts,
                 Vector<std::int64_t> places);

/// to(places(r), :) <- from(r, :), and the same of values. Back: gather_rows with top_k = 1, gather_values.
template <class T>
void place_rows(Device& device, Matrix<const T> from, Vector<const std::int64_t> places, Matrix<T> to);
template <class M>
void place_values(Device& device, Vector<const M> from, Vector<const std::int64_t> places, Vector<M> to);

/// Shard boundaries within the rows of each expert, from its first row; cuts (experts, tokens.shards_on_rank + 1):
///   cuts(e, s) <- rows of expert e whose token comes before held shard s      cuts(e, held) <- counts(e)
void cut_rows(Device& device, index_t top_k, Vector<const std::int64_t> sources, Vector<const std::int64_t> counts,
              const SumOrder& tokens, Matrix<std::int64_t> cuts);

/// Joins the cuts of n ranks per sequence, each of which has m slices of its tokens, where the rows of an expert are
/// stored by rank, then slice. of_ranks (sequences, n, m, experts, held + 1), from cut_rows; cuts (experts x sequences,
/// n held + 1), from the first row of the sequence:
///   cuts(e, s, r held + p) <- sum over t of (sum over r' < r of of_ranks(s, r', t, e, held) + of_ranks(s, r, t, e, p))
void join_cuts(Device& device, Vector<const std::int64_t> of_ranks, index_t experts, index_t sequences, index_t slices,
               Matrix<std::int64_t> cuts);

/// rows(r, :) <- x(sources(r) / top_k, :). rows (count, h), x (tokens, h).
template <class T>
void gather_rows(Device& device, index_t top_k, Matrix<const T> x, Vector<const std::int64_t> sources, Matrix<T> rows);

/// y(token, :) += the rows of its assignments, in order, rounded once; assignments without a row (< 0) are skipped.
template <class T>
void add_rows(Device& device, Matrix<const T> rows, Vector<const std::int64_t> row_of_assignment, Matrix<T> y);

/// of_rows(r) <- of_assignments(sources(r)), and back: of_assignments(i) <- of_rows(row_of_assignment(i)), 0 without a
/// row.
template <class M>
void gather_values(Device& device, Vector<const M> of_assignments, Vector<const std::int64_t> sources,
                   Vector<M> of_rows);
template <class M>
void scatter_values(Device& device, Vector<const M> of_rows, Vector<const std::int64_t> row_of_assignment,
                    Vector<M> of_assignments);

}  // namespace nanotron::kernels
