#pragma once

// Top-k router (Shazeer et al. 2017; Fedus et al. 2022). For the logits l of a token over E experts:
//
//   z = log sum_e exp(l_e)        s_e = exp(l_e - z), or 1 / (1 + exp(-l_e)) (DeepSeek-AI 2024b)        C = sum_e s_e
//   p_e = s_e / C                 c_1 ... c_k: the k largest s + b, at ties the lower index
//   w_j = f s_(c_j), or f s_(c_j) / sum_i s_(c_i)        f: Routing::factor
//
// b (experts): a bias that takes part in the choice only; 0 without one. With groups of consecutive experts a token
// chooses in its best groups only. A group's score is the sum of its two largest s + b (DeepSeek-V3); with softmax its
// largest (DeepSeek-V2).
//
// Backward, from the gradient dw and with the terms of the router's auxiliary losses (nn/moe/moe.hpp), for softmax and
// for sigmoid scores:
//
//   ds_e = [e = c_j] f dw_j, or [e = c_j] (f dw_j - sum_i dw_i w_i) / sum_i s_(c_i)        dp_e = balance n_e / (k S T)
//   dl_e = p_e (ds_e + dp_e - sum_i p_i (ds_i + dp_i)) + (2 zeta / T) z p_e
//   dl_e = s_e (1 - s_e) (ds_e + (dp_e - sum_i p_i dp_i) / C)
//
// where n_e counts the assignments of e in the token's sequence, S are the sequence's tokens and T those of the global
// batch. At empty positions (tensor/sequence_layout.hpp) p, w, z and dl are 0, and no expert is chosen.

#include <cmath>
#include <cstdint>

#include "nanotron/deck/keys/moe.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/sequence_layout.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

enum class TopKWeights { scores, renormalised };

struct Routing {
  index_t experts = 0;
  index_t top_k = 0;
  TopKWeights weights = TopKWeights::scores;
  deck::RouterScore score = deck::RouterScore::softmax;
  index_t groups = 1, groups_per_token = 1;  // groups <= max_groups divides experts
  double factor = 1.0;
};
inline constexpr index_t max_groups = 64;

/// The assignments of an empty position.
inline constexpr std::int64_t no_expert = -1;

/// Where an assignment has no row on this rank: it is dropped, or of an empty position; or another rank, which has the
/// token too, has its row.
inline constexpr std::int64_t no_row = -1, row_of_other_rank = -2;

/// logits (tokens, experts and more columns). All outputs are overwritten: probabilities (tokens, experts), assignments
/// and weights (tokens x top_k), z (tokens) and, with sigmoid scores, score_sums (tokens), the C of the formulas.
/// bias (experts): b; empty: none. M is double or float, as below.
template <class M>
void route_forward(Device& device, const Routing& routing, const FilledPositions& filled, MatrixRef<const M> logits,
                   Matrix<M> probabilities, Vector<std::int64_t> assignments, Vector<M> weights, Vector<M> z,
                   Vector<const M> bias = {}, Vector<M> score_sums = {});

/// balance, zeta and T of the formulas above.
struct RouterScales {
  double balance = 0.0, zeta = 0.0, tokens = 1.0;
};

/// dweights (tokens x top_k); counts (sequences, experts); tokens = sequences x (tokens per sequence), in this order.
/// dlogits (tokens, experts and more columns): the first `experts` columns are overwritten. Sigmoid scores take no
/// zeta.
template <class T>
void route_backward(Device& device, const Routing& routing, const FilledPositions& filled,
                    Matrix<const master_t<T>> probabilities, Vector<const std::int64_t> assignments,
                    Vector<const master_t<T>> weights, Vector<const master_t<T>> z, Vector<const master_t<T>> dweights,
                    Matrix<const std::int64_t> counts, const RouterScales& scales, MatrixRef<T> dlogits,
                    Vector<const master_t<T>> score_sums = {});

/// gate(i) <- 1 / (1 + exp(-logits(i, 0))); backward: dlogits(i, 0) <- dgate g (1 - g).
template <class M>
void sigmoid_forward(Device& device, MatrixRef<const M> logits, Vector<M> gate);
template <class T>
void sigmoid_backward(Device& device, Vector<const master_t<T>> gate, Vector<const master_t<T>> dgate,
                      MatrixRef<T> dlogits);

/// Adds to sums (2 experts + 2), fp64, per layer, over the tokens of this rank. Arguments as above.
///   sums(e) += sum over tokens t of counts(sequence of t, e) p_te s / S    s: positions of a sequence, S: its tokens
///   sums(experts + e) += assignments of e
///   sums(2 experts) += sum of z^2                  sums(2 experts + 1) += assignments of an expert with no_row
template <class M>
void add_router_sums(Device& device, const FilledPositions& filled, Matrix<const M> probabilities,
                     Vector<const std::int64_t> assignments, Vector<const std::int64_t> row_of_assignment,
                     Vector<const M> z, Matrix<const std::int64_t> counts, Vector<double> sums);

/// bias(e) += rate sign(mean of loads - loads(e)), of the same length (Wang et al. 2024). loads: whole numbers.
template <class M>
void balance_bias(Device& device, Vector<const double> loads, double rate, Vector<M> bias);

/// Offsets in `assignments` of the tokens of whole sequences. The assignments of position p of sequence s begin at
/// base(p) + s step(p). If own(p) >= 0, that token is on this rank, with index s length + own(p).
struct SequencePlaces {
  Vector<const std::int64_t> base, step, own;
  index_t sequences = 0;
  index_t length = 0;  // tokens per sequence on this rank
};

/// Max tokens that an expert takes of a sequence with this many: ceil(factor top_k tokens / experts).
NANOTRON_FUNCTION inline index_t expert_capacity(double factor, const Routing& routing, index_t tokens) {
  constexpr double whole = 1.0 - 1e-12;  // a share that is whole up to rounding of the factor is not rounded up
  const double share = factor * static_cast<double>(routing.top_k * tokens) / static_cast<double>(routing.experts);
  const double capacity = std::ceil(share * whole);
  return capacity < static_cast<double>(tokens) ? static_cast<index_t>(capacity) : tokens;
}

/// For the tokens of this rank: rows(assignment) <- no_row if at least expert_capacity
/// earlier tokens of its sequence chose the same expert; others are not written. Empty positions are skipped.
void mark_overflow(Device& device, const Routing& routing, const SequencePlaces& places, const FilledPositions& filled,
                   double factor, Vector<const std::int64_t> assignments, Vector<std::int64_t> rows);

}  // namespace nanotron::kernels
