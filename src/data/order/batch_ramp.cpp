#include "nanotron/data/order/batch_ramp.hpp"

#include <algorithm>

namespace nanotron::data {
namespace {

__extension__ using Wide = __int128;

index_t divided_up(Wide a, index_t b) { return static_cast<index_t>((a + b - 1) / b); }

}  // namespace

BatchRamp::BatchRamp(const deck::DataConfig& data) : BatchRamp(data.global_batch_size) {
  if (data.rampup_batch_size == 0) return;
  first_ = data.rampup_batch_size;
  increment_ = data.rampup_increment;
  increments_ = (last_ - first_) / increment_;
  samples_ = data.rampup_samples;
}

index_t BatchRamp::at(index_t sample) const {
  if (sample >= samples_) return last_;
  return std::min(last_, first_ + increment_ * static_cast<index_t>(Wide{sample} * increments_ / samples_));
}

// Steps from here on that have at(sample) < last_ sequences, that of increment j: until sample (j + 1) R / n is
// reached.
index_t BatchRamp::steps_of_size(index_t sample) const {
  const Wide j = Wide{sample} * increments_ / samples_;
  return divided_up(divided_up((j + 1) * samples_, increments_) - sample, at(sample));
}

index_t BatchRamp::after(index_t sample, index_t steps) const {
  while (steps > 0 && at(sample) < last_) {
    const index_t here = std::min(steps, steps_of_size(sample));
    sample += here * at(sample);
    steps -= here;
  }
  return sample + steps * last_;
}

index_t BatchRamp::steps_until(index_t sample, index_t end) const {
  index_t steps = 0;
  while (sample < end && at(sample) < last_) {
    const index_t here = std::min(steps_of_size(sample), divided_up(end - sample, at(sample)));
    sample += here * at(sample);
    steps += here;
  }
  return steps + (sample < end ? divided_up(end - sample, last_) : 0);
}

index_t BatchRamp::steps() const {
  index_t steps = 0;
  for (index_t sample = 0; at(sample) < last_;) {
    const index_t here = steps_of_size(sample);
    sample += here * at(sample);
    steps += here;
  }
  return steps;
}

std::vector<index_t> BatchRamp::sizes() const {
  std::vector<index_t> all;
  for (index_t j = 0; j <= increments_; ++j) all.push_back(std::min(last_, first_ + j * increment_));
  return all;
}

}  // namespace nanotron::data
