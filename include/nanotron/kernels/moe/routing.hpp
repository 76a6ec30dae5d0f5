#pragma once

// Top-k router (Shazeer et al. 2017; Fedus et al. 2022). For the logits l of a token over E experts:
//
//   p_e = exp(l_e - z),  z = log sum_e exp(l_e)        c_1 ... c_k: the k largest p, at ties the lower index
//   w_j = p_(c_j), or p_(c_j) / sum_i p_(c_i)
//
// Backward, from the gradient dw and with the terms of the router's auxiliary losses (nn/moe/moe.hpp):
//
//   dp_e = [e = c_j] dw_j, or [e = c_j] (dw_j - sum_i dw_i w_i) / sum_i p_(c_i)        + balance n_e / (k S T)
//   dl_e = p_e (dp_e - sum_i p_i dp_i) + (2 zeta / T) z p_e
//
// where n_e counts the choices of e in the token's sequence, S are the sequence's tokens and T those of the global
// batch. At empty positions (tensor/filled_positions.hpp) p, w, z and dl are 0, and no expert is chosen. Choices and
// rows are int64: they are also sent.

#include <cmath>
#include <cstdint>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/filled_positions.hpp"
#include "nanotron/tensor/sum_order.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

enum class TopKWeights { softmax, renormalised };

struct Routing {
  index_t experts = 0;
  index_t top_k = 0;
  TopKWeights weights = TopKWeights::softmax;
};

/// The choices of an empty position.
inline constexpr std::int64_t no_expert = -1;

/// logits (tokens, experts and more columns). All outputs are overwritten: probabilities (tokens, experts), choices
/// and weights (tokens x top_k), z (tokens). M is double or float, as below.
template <class M>
void route_forward(Device& device, const Routing& routing, const FilledPositions& filled, MatrixRef<const M> logits,
                   Matrix<M> probabilities, Vector<std::int64_t> choices, Vector<M> weights, Vector<M> z);

/// balance, zeta and T of the formulas above.
struct RouterScales {
  double balance = 0.0, zeta = 0.0, tokens = 1.0;
};

/// dweights (tokens x top_k); counts (sequences, experts); tokens = sequences x (tokens per sequence), in this order.
/// dlogits (tokens, experts and more columns): the first `experts` columns are overwritten.
template <class T>
void route_backward(Device& device, const Routing& routing, const FilledPositions& filled,
                    Matrix<const master_t<T>> probabilities, Vector<const std::int64_t> choices,
                    Vector<const master_t<T>> weights, Vector<const master_t<T>> z,
                    Vector<const master_t<T>> dweights, Matrix<const std::int64_t> counts, const RouterScales& scales,
                    MatrixRef<T> dlogits);

/// counts (sequences, experts) <- how often each expert is chosen.
void count_choices(Device& device, index_t top_k, Vector<const std::int64_t> choices, Matrix<std::int64_t> counts);

/// rows(choice) <- -1 for those of no expert, else 0; sources <- 0: rows that no choice has are then read from a token.
void mark_routed(Device& device, Vector<const std::int64_t> choices, Vector<std::int64_t> rows,
                 Vector<std::int64_t> sources);

/// Choices per stretch, which is counted serially, and the number of stretches of n choices.
inline constexpr index_t choices_of_stretch = 256;
constexpr index_t stretches_of(index_t n) { return (n + choices_of_stretch - 1) / choices_of_stretch; }

/// Numbers the choices with rows(choice) >= 0 on entry, sorted by expert and then by token: rows(choice) <- row,
/// sources(row) <- choice, counts (experts) <- rows per expert. Other elements of rows and sources are not written.
/// stretches, at least (stretches_of(choices), experts), is overwritten.
void assign_rows(Device& device, Vector<const std::int64_t> choices, Vector<std::int64_t> rows,
                 Vector<std::int64_t> sources, Vector<std::int64_t> counts, Matrix<std::int64_t> stretches);

/// begin (experts + 1) <- the first row of each expert, and the end of the last one's, for counts (ranks, experts) of
/// rows that are sorted by expert.
void expert_offsets(Device& device, Matrix<const std::int64_t> counts, Vector<std::int64_t> begin);

/// Shard boundaries within the rows of each expert, from its first row; cuts (experts, tokens.held + 1):
///   cuts(e, s) <- rows of expert e whose token comes before held shard s      cuts(e, held) <- counts(e)
void cut_rows(Device& device, index_t top_k, Vector<const std::int64_t> sources, Vector<const std::int64_t> counts,
              const SumOrder& tokens, Matrix<std::int64_t> cuts);

/// Joins the cuts of n ranks per sequence, where the rows of an expert are stored by rank. of_ranks (sequences, n,
/// experts, held + 1), from cut_rows; cuts (experts x sequences, n held + 1), from the first row of the sequence:
///   cuts(e, s, r held + p) <- sum over r' < r of of_ranks(s, r', e, held) + of_ranks(s, r, e, p)
void join_cuts(Device& device, Vector<const std::int64_t> of_ranks, index_t experts, index_t sequences,
               Matrix<std::int64_t> cuts);

/// rows(r, :) <- x(sources(r) / top_k, :). rows (count, h), x (tokens, h).
template <class T>
void gather_rows(Device& device, index_t top_k, Matrix<const T> x, Vector<const std::int64_t> sources, Matrix<T> rows);

/// y(token, :) += the rows of its choices, in order, rounded once; choices without a row (< 0) are skipped.
template <class T>
void add_rows(Device& device, Matrix<const T> rows, Vector<const std::int64_t> row_of_choice, Matrix<T> y);

/// of_rows(r) <- of_choices(sources(r)), and back: of_choices(i) <- of_rows(row_of_choice(i)), 0 without a row.
template <class M>
void gather_values(Device& device, Vector<const M> of_choices, Vector<const std::int64_t> sources, Vector<M> of_rows);
template <class M>
void scatter_values(Device& device, Vector<const M> of_rows, Vector<const std::int64_t> row_of_choice,
                    Vector<M> of_choices);

/// gate(i) <- 1 / (1 + exp(-logits(i, 0))); backward: dlogits(i, 0) <- dgate g (1 - g).
template <class M>
void sigmoid_forward(Device& device, MatrixRef<const M> logits, Vector<M> gate);
template <class T>
void sigmoid_backward(Device& device, Vector<const master_t<T>> gate, Vector<const master_t<T>> dgate,
                      MatrixRef<T> dlogits);

/// Adds to sums (2 experts + 2), fp64, per layer, over the tokens of this rank. Arguments as above.
///   sums(e) += sum over tokens t of counts(sequence of t, e) p_te s / S    s: positions of a sequence, S: its tokens
///   sums(experts + e) += choices of e
///   sums(2 experts) += sum of z^2                  sums(2 experts + 1) += choices of an expert without a row
template <class M>
void add_router_sums(Device& device, const FilledPositions& filled, Matrix<const M> probabilities,
                     Vector<const std::int64_t> choices, Vector<const std::int64_t> row_of_choice, Vector<const M> z,
                     Matrix<const std::int64_t> counts, Vector<double> sums);

/// Offsets in `choices` of the tokens of whole sequences. The choices of position p of sequence s begin at
/// base(p) + s step(p). If own(p) >= 0, that token is on this rank, with index s length + own(p).
struct SequencePlaces {
  Vector<const std::int64_t> base, step, own;
  index_t sequences = 0;
  index_t length = 0;  // tokens per sequence on this rank
};

/// Max tokens that an expert takes of a sequence with so many: ceil(factor top_k tokens / experts).
NANOTRON_FUNCTION inline index_t expert_capacity(double factor, const Routing& routing, index_t tokens) {
  constexpr double whole = 1.0 - 1e-12;  // a share that is whole up to rounding of the factor is not rounded up
  const double share = factor * static_cast<double>(routing.top_k * tokens) / static_cast<double>(routing.experts);
  const double capacity = std::ceil(share * whole);
  return capacity < static_cast<double>(tokens) ? static_cast<index_t>(capacity) : tokens;
}

/// For the tokens of this rank: rows(choice) <- -1 if as many earlier tokens of the sequence as its expert_capacity, or
/// more, chose the same expert, else 0. Empty positions are passed over.
void mark_overflow(Device& device, const Routing& routing, const SequencePlaces& places, const FilledPositions& filled,
                   double factor, Vector<const std::int64_t> choices, Vector<std::int64_t> rows);

}  // namespace nanotron::kernels
