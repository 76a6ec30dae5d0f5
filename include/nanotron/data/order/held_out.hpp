#pragma once

// Which sequences of a file are the validation split: a pure function of the number of sequences.

#include "nanotron/base/types.hpp"

namespace nanotron::data {

/// Of N sequences, H are held out in R = min(H, 256) evenly spaced pieces, and T = N - H are for training. The file is
/// R times: training sequences, then held-out ones,
///
///     training    k in [floor(rT/R), floor((r+1)T/R))  is sequence  k + floor(rH/R)
///     validation  v in [floor(rH/R), floor((r+1)H/R))  is sequence  v + floor((r+1)T/R)      r = 0, ..., R-1
///
/// Few held-out sequences are next to a training sequence, and the many pieces sample the whole file.
class HeldOut {
 public:
  /// 0 <= held_out <= all <= 2^54.
  HeldOut(index_t all, index_t held_out);

  index_t training_count() const { return training_; }
  index_t validation_count() const { return held_out_; }
  index_t training(index_t k) const;
  index_t validation(index_t v) const;

 private:
  index_t training_, held_out_, pieces_;
};

/// Sample i of n, spread over V = sequences >= n: floor((2i+1) V / 2n), the middle of part i of n equal parts.
inline index_t spread(index_t i, index_t n, index_t sequences) { return (2 * i + 1) * sequences / (2 * n); }

}  // namespace nanotron::data
