#pragma once

// The sequence of a sample: a pure function of (seed, global sample index). It does not depend on rank, dp
// or micro-batch, so a resumed run may change these and neither loses nor repeats a sample.

#include <cstdint>
#include <span>

#include "nanotron/base/types.hpp"
#include "nanotron/deck/keys/data.hpp"

namespace nanotron::data {

/// Sample g of N sequences is in epoch g / N at position g % N. shuffle none: sequence = position. shuffle
/// global: sequence = pi(position), where pi is a permutation of [0, N) keyed by (seed, epoch): a balanced
/// Feistel network on the next even number of bits, applied again until the value is below N (cycle
/// walking: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). O(1) time and memory.
class SampleOrder {
 public:
  /// number_of_sequences in [1, 2^60].
  SampleOrder(std::uint64_t seed, index_t number_of_sequences, deck::Shuffle shuffle);

  /// In [0, number_of_sequences). global_sample_index >= 0.
  index_t sequence_of(index_t global_sample_index) const;
  index_t number_of_sequences() const { return number_of_sequences_; }

 private:
  std::uint64_t permute(std::uint64_t position, std::uint64_t epoch) const;

  std::uint64_t seed_;
  index_t number_of_sequences_;
  deck::Shuffle shuffle_;
  int half_bits_;  // the network permutes [0, 4^half_bits)
};

/// XXH3-64 of the tokens of one sample (inputs and the last target: sequence_length + 1 ids as
/// int32), seeded by its global sample index. The hash of a step is the sum of these mod 2^64 over
/// its samples: the same for every dp, micro-batch size and rank order, and different when a sample is
/// lost, repeated or moved.
std::uint64_t token_hash(index_t global_sample_index, std::span<const std::int32_t> tokens);

// Which sequences of a file are the validation split: a pure function of the number of sequences.

/// Of N sequences, H are held out in R = min(H, 256) evenly spaced segments, and T = N - H are for training. The file
/// is R times: training sequences, then held-out ones,
///
///     training    k in [floor(rT/R), floor((r+1)T/R))  is sequence  k + floor(rH/R)
///     validation  v in [floor(rH/R), floor((r+1)H/R))  is sequence  v + floor((r+1)T/R)      r = 0, ..., R-1
///
/// Few held-out sequences are next to a training sequence, and the many segments sample the whole file.
class HeldOut {
 public:
  /// 0 <= held_out <= all <= 2^54.
  HeldOut(index_t all, index_t held_out);

  index_t training_count() const { return training_; }
  index_t validation_count() const { return held_out_; }
  index_t training(index_t k) const;
  index_t validation(index_t v) const;

 private:
  index_t training_, held_out_, segments_;
};

/// Sample i of n, spread over V = sequences >= n: floor((2i+1) V / 2n), the middle of part i of n equal parts.
inline index_t spread(index_t i, index_t n, index_t sequences) { return (2 * i + 1) * sequences / (2 * n); }

}  // namespace nanotron::data
