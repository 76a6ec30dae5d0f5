#pragma once

#include <cstdint>
#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

// RoPE scaling: changes the frequencies f = theta^(-2i/d) of pair i for sequences longer than the original length L,
// which the model was first trained on. Long wavelengths 2 pi / f are stretched by a factor s, short ones kept:
//
//   f <- k f + (1 - k) f / s        k = 0: stretched, k = 1: kept
//
//   linear   k = 0
//   llama3   k = (L f / (2 pi) - l) / (h - l), clamped to [0, 1]; l, h: low_freq_factor, high_freq_factor  (Llama 3.1)
//   yarn     k = 1 - (i - b) / (e - b), clamped to [0, 1]; b, e: the pairs i with beta_fast and beta_slow rotations in
//            L tokens; cosine and sine are multiplied by a magnitude m = 0.1 log(s) + 1      (Peng et al. 2023)
//   longrope f <- f / s_i, a factor for each pair; m = sqrt(1 + log(s) / log(L))             (Ding et al. 2024)
//   dynamic  f of a larger theta, for sequences of S > L tokens:
//            theta <- theta (s S / L - (s - 1))^(d / (d - 2))                                (NTK-aware)
//
// as in transformers (modeling_rope_utils.py).

class RotaryScaling {
 public:
  RotaryScaling() = default;  // f unchanged

  struct Linear {
    double factor = 1.0;
  };
  explicit RotaryScaling(const Linear& of) : factor_(of.factor), none_kept_(2.0), all_kept_(3.0) {}  // f <= 1

  struct Llama3 {
    double factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
    double original_length = 8192.0;
  };
  explicit RotaryScaling(const Llama3& of);

  struct Yarn {
    double factor = 4.0, beta_fast = 32.0, beta_slow = 1.0;
    double attention_factor = 0.0;  // m; 0: the formula above
    double original_length = 4096.0;
    bool truncate = true;  // b and e are rounded outwards to integers
  };
  /// theta and head_dim give b and e.
  RotaryScaling(const Yarn& of, double theta, index_t head_dim);

  struct LongRope {
    std::vector<double> factors{};  // s_i
    double factor = 1.0, original_length = 4096.0;
    double attention_factor = 0.0;  // m; 0: the formula above
  };
  explicit RotaryScaling(const LongRope& of);

  /// The scaled frequency of pair i; f is the unscaled one.
  double operator()(double f, index_t i) const {
    if (!factors_.empty()) return f / factors_[static_cast<std::size_t>(i)];
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
  std::vector<double> factors_;  // of longrope
};

/// theta of 'dynamic' for sequences of `length` tokens, with r elements of a head rotated.
double dynamic_theta(double theta, double factor, double original_length, double length, index_t r);

// Rotary position embedding (RoPE, Su et al. 2021) in the rotate-half convention of Llama. In a head of
// width d, at position p, the elements i and i + d/2, i < d/2, are rotated by a = p theta^(-2i/d):
//
//   y_i = x_i cos a - x_(i+d/2) sin a      y_(i+d/2) = x_(i+d/2) cos a + x_i sin a
//
// A part of a head: its first r < d elements are rotated, with r instead of d above; the others are unchanged.
// Interleaved: the pairs are 2i, 2i + 1 (GLM-4).

struct RotaryPairs {
  index_t head_dim = 0;  // d; 0: twice the pairs, the whole head
  bool interleaved = false;
};

/// cosine, sine (max_positions, r / 2), overwritten by scaling.magnitude() times cos a and sin a;
/// computed in fp64, rounded once. M is double or float.
template <class M>
void rotary_tables(Device& device, double theta, Matrix<M> cosine, Matrix<M> sine, const RotaryScaling& scaling = {});

/// x (tokens, heads * head_dim) in place; row t is at position positions(t) < max_positions.
/// r = 2 * cosine.extent(1); x.columns is a multiple of d.
template <class T>
void rotary_forward(Device& device, MatrixRef<T> x, Vector<const std::int32_t> positions,
                    Matrix<const master_t<T>> cosine, Matrix<const master_t<T>> sine, const RotaryPairs& pairs = {});

/// x (tokens, q | k | v) += bias (x.columns), then the heads in its first `rotated` columns as rotary_forward; rounded
/// to T once.
template <class T>
void bias_rotary_forward(Device& device, MatrixRef<T> x, index_t rotated, Vector<const master_t<T>> bias,
                         Vector<const std::int32_t> positions, Matrix<const master_t<T>> cosine,
                         Matrix<const master_t<T>> sine, const RotaryPairs& pairs = {});

/// The transpose of rotary_forward (rotation by -a), in place on the gradient.
template <class T>
void rotary_backward(Device& device, MatrixRef<T> dx, Vector<const std::int32_t> positions,
                     Matrix<const master_t<T>> cosine, Matrix<const master_t<T>> sine, const RotaryPairs& pairs = {});

}  // namespace nanotron::kernels
