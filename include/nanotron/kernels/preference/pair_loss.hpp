#pragma once

// The loss of a pair of answers, chosen (c) and rejected (r), from the losses l_t = -log p_t of their tokens (direct
// preference optimization; Rafailov et al. 2023, equation 7). For a in {c, r}:
//
//   L_a = sum over t in a of l_t           reward R_a = beta (-L_a - log p_ref,a)
//   loss = -log sigmoid(R_c - R_r)         w_t = d loss / d l_t = +beta sigmoid(R_r - R_c) in c, -the same in r
//
// A sequence holds both answers, each a document; the first one is the chosen one. Tokens without a target have loss 0.
// Vectors of two values per sequence have those of the chosen answer first.

#include <cstdint>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/sequence_layout.hpp"
#include "nanotron/tensor/sum_order.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// The rows of a rank: (sequences, tokens of the shard).
struct PairRows {
  SequenceShard shard{};
  index_t length = 0;                            // of a whole sequence
  Vector<const std::int32_t> document_starts{};  // (sequences, length): where the document of each position begins

  NANOTRON_FUNCTION index_t sequence_of(index_t row) const { return row / shard.length(); }
  /// 0: chosen, 1: rejected.
  NANOTRON_FUNCTION int answer_of(index_t row) const {
    const index_t position = shard.position_of(row % shard.length());
    return document_starts.data()[sequence_of(row) * length + position] == 0 ? 0 : 1;
  }
  /// Whether it is the first of its sequence, which one rank has.
  NANOTRON_FUNCTION bool is_first(index_t row) const { return shard.position_of(row % shard.length()) == 0; }
  bool has_first() const { return shard.length() > 0 && shard.position_of(0) == 0; }
};

/// sums (sequences, tokens.shards, 2) <- of losses (rows) of this rank, by answer; zeros of shards on other ranks.
/// tokens: the order of a sum over the tokens of a sequence; empty: one shard, of the rank's tokens.
void pair_sums(Device& device, const PairRows& rows, const SumOrder& tokens, Vector<const double> losses,
               Vector<double> sums);

/// L_a and log p_ref,a of each sequence, both (sequences, 2).
struct PairLogs {
  Vector<const double> losses, reference;
  double beta = 0.0;

  NANOTRON_FUNCTION double reward(index_t sequence, int answer) const {
    const index_t i = 2 * sequence + answer;
    return beta * (-losses.data()[i] - reference.data()[i]);
  }
  NANOTRON_FUNCTION double margin(index_t sequence) const { return reward(sequence, 0) - reward(sequence, 1); }
};

/// weights (rows) <- w_t.
void pair_weights(Device& device, const PairRows& rows, const PairLogs& logs, Vector<double> weights);

/// losses (rows) <- the loss of the pair in the first row of a sequence, 0 in the others.
void pair_losses(Device& device, const PairRows& rows, const PairLogs& logs, Vector<double> losses);

/// chosen, rejected, accuracy (sequences) <- the rewards, and 1 where that of the chosen answer is larger, else 0;
/// zeros on ranks without the first position of the sequences, so that one rank counts a pair.
void pair_rewards(Device& device, const PairRows& rows, const PairLogs& logs, Vector<double> chosen,
                  Vector<double> rejected, Vector<double> accuracy);

}  // namespace nanotron::kernels
