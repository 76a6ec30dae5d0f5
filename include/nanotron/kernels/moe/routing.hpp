#pragma once

// Which experts a token goes to (Shazeer et al. 2017; Fedus et al. 2022). For the logits l of a token over E experts:
//
//   p_e = exp(l_e - z),  z = log sum_e exp(l_e)        c_1 ... c_k: the k largest p, of equal ones the lower number
//   w_j = p_(c_j), or p_(c_j) / sum_i p_(c_i)
//
// Backward, with the gradient dw and what the router's own losses add (nn/moe/moe.hpp):
//
//   dp_e = [e = c_j] dw_j, or [e = c_j] (dw_j - sum_i dw_i w_i) / sum_i p_(c_i)        + balance n_e
//   dl_e = p_e (dp_e - sum_i p_i dp_i) + 2 zeta z p_e
//
// where n_e counts the choices of e in the token's sequence. Choices and rows are int64: they also travel.

#include <cstdint>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/sum_order.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

enum class TopKWeights { softmax, renormalised };

struct Routing {
  index_t experts = 0;
  index_t top_k = 0;
  TopKWeights weights = TopKWeights::softmax;
};

/// logits (tokens, experts and more columns). All outputs are overwritten: probabilities (tokens, experts), choices
/// and weights (tokens x top_k), z (tokens). M is double or float, as below.
template <class M>
void route_forward(Device& device, const Routing& routing, MatrixRef<const M> logits, Matrix<M> probabilities,
                   Vector<std::int64_t> choices, Vector<M> weights, Vector<M> z);

/// Factors of the router's losses, in the gradient of the training loss.
struct RouterScales {
  double balance = 0.0, zeta = 0.0;
};

/// dweights (tokens x top_k); counts (sequences, experts), tokens being those of whole sequences one behind the other.
/// dlogits (tokens, experts and more columns): the first `experts` are overwritten.
template <class T>
void route_backward(Device& device, const Routing& routing, Matrix<const master_t<T>> probabilities,
                    Vector<const std::int64_t> choices, Vector<const master_t<T>> weights, Vector<const master_t<T>> z,
                    Vector<const master_t<T>> dweights, Matrix<const std::int64_t> counts, const RouterScales& scales,
                    MatrixRef<T> dlogits);

/// counts (sequences, experts) <- how often each expert is chosen.
void count_choices(Device& device, index_t top_k, Vector<const std::int64_t> choices, Matrix<std::int64_t> counts);

/// Choices that are counted one after the other, and how many stretches of them n choices are.
inline constexpr index_t choices_of_stretch = 256;
constexpr index_t stretches_of(index_t n) { return (n + choices_of_stretch - 1) / choices_of_stretch; }

/// Gives every choice whose row is not negative on entry its row, sorted by expert and then by token; counts (experts)
/// <- rows of each. sources(row) <- the number of the choice. One row more is never touched. stretches, at least
/// (stretches_of(choices), experts), is overwritten.
void assign_rows(Device& device, Vector<const std::int64_t> choices, Vector<std::int64_t> rows,
                 Vector<std::int64_t> sources, Vector<std::int64_t> counts, Matrix<std::int64_t> stretches);

/// Where the rows that assign_rows gave each expert cross from one shard of the tokens here to the next: cuts (experts,
/// tokens.held + 1), counted from the expert's first row.
void cut_rows(Device& device, index_t top_k, Vector<const std::int64_t> sources, Vector<const std::int64_t> counts,
              const SumOrder& tokens, Matrix<std::int64_t> cuts);

/// The cuts of `sequences` x n ranks, from (ranks, experts, places of cut_rows), where the rows of an expert lie by rank:
/// cuts (experts x sequences, n (places - 1) + 1), each counted from the first row of its sequence.
void join_cuts(Device& device, Vector<const std::int64_t> of_ranks, index_t experts, index_t sequences,
               Matrix<std::int64_t> cuts);

/// rows (count, hidden) <- x of the token of each row's choice. x (tokens, hidden).
template <class T>
void gather_rows(Device& device, index_t top_k, Matrix<const T> x, Vector<const std::int64_t> sources, Matrix<T> rows);

/// y(token) += the rows of its choices, in their order, rounded once; choices without a row are left out.
template <class T>
void add_rows(Device& device, Matrix<const T> rows, Vector<const std::int64_t> row_of_choice, Matrix<T> y);

/// One value a choice to one a row, and back (0 for choices without a row).
template <class M>
void gather_values(Device& device, Vector<const M> of_choices, Vector<const std::int64_t> sources, Vector<M> of_rows);
template <class M>
void scatter_values(Device& device, Vector<const M> of_rows, Vector<const std::int64_t> row_of_choice,
                    Vector<M> of_choices);

/// gate(i) <- 1 / (1 + exp(-logits(i, 0))); backward: dlogits(i, 0) <- dgate g (1 - g).
template <class M>
void sigmoid_forward(Device& device, MatrixRef<const M> logits, Vector<M> gate);
template <class T>
void sigmoid_backward(Device& device, Vector<const master_t<T>> gate, Vector<const master_t<T>> dgate, MatrixRef<T> dlogits);

/// Adds to sums (2 experts + 2), of a layer and in fp64: for each expert its part of sum_s n_e sum_t p_te, then the
/// choices of it here, then sum of z^2, then choices without a row. Arguments as above.
template <class M>
void add_router_sums(Device& device, Matrix<const M> probabilities, Vector<const std::int64_t> choices,
                     Vector<const std::int64_t> row_of_choice, Vector<const M> z, Matrix<const std::int64_t> counts,
                     Vector<double> sums);

/// Where the tokens of whole sequences lie in `choices`, and which of them are here: for position p of sequence s the
/// choices begin at base(p) + s step(p), and the token here is s length + own(p), unless own(p) is negative.
struct SequencePlaces {
  Vector<const std::int64_t> base, step, own;
  index_t sequences = 0;
  index_t length = 0;  // tokens of a sequence here
};

/// rows(choice) <- -1 where the expert was chosen by `capacity` earlier tokens of the sequence, else 0, for the tokens
/// here.
void mark_overflow(Device& device, const Routing& routing, const SequencePlaces& places, index_t capacity,
                   Vector<const std::int64_t> choices, Vector<std::int64_t> rows);

}  // namespace nanotron::kernels
