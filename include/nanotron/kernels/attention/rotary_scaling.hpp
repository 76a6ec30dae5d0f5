#pragma once

// RoPE scaling: changes the frequencies f = theta^(-2i/d) of pair i for sequences longer than the original length L,
// which the model was first trained on. Long wavelengths 2 pi / f are stretched by a factor s, short ones kept:
//
//   f <- k f + (1 - k) f / s        k = 0: stretched, k = 1: kept
//
//   llama3   k = (L f / (2 pi) - l) / (h - l), clamped to [0, 1]; l, h: low_freq_factor, high_freq_factor  (Llama 3.1)
//   yarn     k = 1 - (i - b) / (e - b), clamped to [0, 1]; b, e: the pairs i with beta_fast and beta_slow rotations in
//            L tokens; cosine and sine are multiplied by a magnitude m = 0.1 log(s) + 1      (Peng et al. 2023)
//
// as in transformers (modeling_rope_utils.py).

#include "nanotron/base/types.hpp"

namespace nanotron::kernels {

class RotaryScaling {
 public:
  RotaryScaling() = default;  // f unchanged

  struct Llama3 {
    double factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
    double original_length = 8192.0;
  };
  explicit RotaryScaling(const Llama3& of);

  struct Yarn {
    double factor = 4.0, beta_fast = 32.0, beta_slow = 1.0;
    double attention_factor = 0.0;  // m; 0: the formula above
    double original_length = 4096.0;
  };
  /// theta and head_dim give b and e, which are rounded outwards to integers.
  RotaryScaling(const Yarn& of, double theta, index_t head_dim);

  /// The scaled frequency of pair i; f is the unscaled one.
  NANOTRON_FUNCTION double operator()(double f, index_t i) const {
    if (factor_ == 1.0) return f;
    const double measure = by_pair_ ? static_cast<double>(i) : f;
    const double share = (measure - none_kept_) / (all_kept_ - none_kept_);
    const double k = share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share;
    return k * f + (1.0 - k) * (f / factor_);
  }
  /// m of the formulas above.
  double magnitude() const { return magnitude_; }

 private:
  double factor_ = 1.0;
  bool by_pair_ = false;                     // k is a function of i, else of f
  double none_kept_ = 0.0, all_kept_ = 1.0;  // i or f at which k is 0 and 1
  double magnitude_ = 1.0;
};

}  // namespace nanotron::kernels
