#include "nanotron/kernels/attention/rotary_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nanotron::kernels {

RotaryScaling::RotaryScaling(const Llama3& of)
    : factor_(of.factor),
      none_kept_(2.0 * std::numbers::pi * of.low_freq_factor / of.original_length),
      all_kept_(2.0 * std::numbers::pi * of.high_freq_factor / of.original_length) {}

// pair_of(turns): i of theta^(-2i/d) L = 2 pi turns.
RotaryScaling::RotaryScaling(const Yarn& of, double theta, index_t head_dim) : factor_(of.factor), by_pair_(true) {
  const auto d = static_cast<double>(head_dim);
  const auto pair_of = [&](double turns) {
    return d * std::log(of.original_length / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
  };
  all_kept_ = std::max(std::floor(pair_of(of.beta_fast)), 0.0);
  none_kept_ = std::min(std::ceil(pair_of(of.beta_slow)), d - 1.0);
  if (all_kept_ == none_kept_) none_kept_ += 0.001;
  const double stretched = of.factor > 1.0 ? 0.1 * std::log(of.factor) + 1.0 : 1.0;
  magnitude_ = of.attention_factor > 0.0 ? of.attention_factor : stretched;
}

}  // namespace nanotron::kernels
