#pragma once

// How the frequencies f = theta^(-2i/d) of the rotary embedding are changed for sequences longer than the L tokens that
// a model was first trained on. They are divided by a factor s where their wavelength 2 pi / f is long, kept where it
// is short, and in between, with a share k that is kept,
//
//   f <- k f + (1 - k) f / s
//
//   llama3   k = (L f / (2 pi) - l) / (h - l), between 0 and 1; l and h: turns in L tokens      (Llama 3.1)
//   yarn     k = 1 - (i - b) / (e - b), between 0 and 1; b and e: the pairs i with beta_fast and beta_slow turns in
//            L tokens; cosine and sine are multiplied by a magnitude m = 0.1 log(s) + 1      (Peng et al. 2023)
//
// as transformers computes them (modeling_rope_utils.py).

#include "nanotron/base/types.hpp"

namespace nanotron::kernels {

class RotaryScaling {
 public:
  RotaryScaling() = default;  // f as it is

  struct Llama3 {
    double factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
    double original_length = 8192.0;
  };
  explicit RotaryScaling(const Llama3& of);

  struct Yarn {
    double factor = 4.0, beta_fast = 32.0, beta_slow = 1.0;
    double attention_factor = 0.0;  // m; 0: as above
    double original_length = 4096.0;
  };
  /// Pairs are counted in heads of head_dim; b and e are rounded outwards to whole ones.
  RotaryScaling(const Yarn& of, double theta, index_t head_dim);

  /// The frequency of pair i, which is f without scaling.
  NANOTRON_FUNCTION double operator()(double f, index_t i) const {
    if (factor_ == 1.0) return f;
    const double measure = by_pair_ ? static_cast<double>(i) : f;
    const double share = (measure - none_kept_) / (all_kept_ - none_kept_);
    const double k = share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share;
    return k * f + (1.0 - k) * (f / factor_);
  }
  /// m.
  double magnitude() const { return magnitude_; }

 private:
  double factor_ = 1.0;
  bool by_pair_ = false;                     // measured by i, else by f
  double none_kept_ = 0.0, all_kept_ = 1.0;  // the measures at which k is 0 and 1
  double magnitude_ = 1.0;
};

}  // namespace nanotron::kernels
