#pragma once

// The batch-size ramp: sequences of a step, a pure function of the sample cursor.

#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/deck/keys/data.hpp"

namespace nanotron::data {

/// B0 = data%rampup_batch_size, I = rampup_increment, R = rampup_samples, G = global_batch_size, n = (G - B0) / I. The
/// step whose first sample is g has (Megatron-LM's --rampup-batch-size B0 I R)
///
///     B(g) = min(G, B0 + I floor(g n / R)) sequences;     B(g) = G without a ramp, B0 = 0.
///
/// What a step takes follows from the cursor, so that it does not matter where a run was interrupted.
class BatchRamp {
 public:
  /// Every step has `size` sequences.
  explicit BatchRamp(index_t size) : first_(size), last_(size) {}
  explicit BatchRamp(const deck::DataConfig& data);

  /// Sequences of the step that begins at this sample.
  index_t at(index_t sample) const;
  /// The sample cursor after this many further steps.
  index_t after(index_t sample, index_t steps) const;
  /// Steps from `sample` on until a step begins at `end` or later.
  index_t steps_until(index_t sample, index_t end) const;
  /// All sizes, rising.
  std::vector<index_t> sizes() const;
  /// Steps of a run before the first one of the last size.
  index_t steps() const;

 private:
  index_t steps_of_size(index_t sample) const;
  index_t first_, last_, increment_ = 1, increments_ = 0, samples_ = 1;
};

}  // namespace nanotron::data
