#pragma once

// Reference implementation of kernels/rotary, see reference/gemm.hpp.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "nanotron/kernels/attention/rotary.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels::reference {

/// theta^(-2i/d) for i < d / 2.
inline std::vector<double> rotary_frequencies(double theta, index_t head_dim) {
  std::vector<double> f;
  for (index_t i = 0; i < head_dim / 2; ++i) {
    f.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
  }
  return f;
}

/// The same as transformers' _compute_llama3_parameters changes them: by wavelengths.
inline std::vector<double> llama3_frequencies(double theta, index_t head_dim, const RotaryScaling::Llama3& s) {
  std::vector<double> f = rotary_frequencies(theta, head_dim);
  for (double& x : f) {
    const double wavelength = 2.0 * std::numbers::pi / x;
    const double smooth =
        (s.original_length / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
    if (wavelength > s.original_length / s.low_freq_factor) {
      x /= s.factor;
    } else if (wavelength >= s.original_length / s.high_freq_factor) {
      x = (1.0 - smooth) * x / s.factor + smooth * x;
    }
  }
  return f;
}

/// As its _compute_yarn_parameters: a ramp over the pairs.
inline std::vector<double> yarn_frequencies(double theta, index_t head_dim, const RotaryScaling::Yarn& s) {
  const auto dimension = [&](double turns) {
    return static_cast<double>(head_dim) * std::log(s.original_length / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(theta));
  };
  const double low = std::max(std::floor(dimension(s.beta_fast)), 0.0);
  const double high = std::min(std::ceil(dimension(s.beta_slow)), static_cast<double>(head_dim - 1));
  std::vector<double> f = rotary_frequencies(theta, head_dim);
  for (std::size_t i = 0; i < f.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    f[i] = f[i] / s.factor * ramp + f[i] * (1.0 - ramp);
  }
  return f;
}

/// Turns the heads of x in place by direction (1 forward, -1 backward) times the angle of each
/// position, and multiplies what is turned by the magnitude.
inline void rotary(MatrixRef<double> x, const std::vector<double>& frequencies, const std::int32_t* positions,
                   double direction, double magnitude = 1.0, const RotaryPairs& pairs = {}) {
  const auto half = static_cast<index_t>(frequencies.size());
  const index_t width = pairs.head_dim > 0 ? pairs.head_dim : 2 * half;
  for (index_t t = 0; t < x.rows; ++t) {
    for (index_t first = 0; first < x.columns; first += width) {
      for (index_t i = 0; i < half; ++i) {
        const double angle = direction * positions[t] * frequencies[static_cast<std::size_t>(i)];
        const index_t low = first + (pairs.interleaved ? 2 * i : i), high = pairs.interleaved ? low + 1 : low + half;
        const double a = x(t, low);
        const double b = x(t, high);
        x(t, low) = magnitude * (a * std::cos(angle) - b * std::sin(angle));
        x(t, high) = magnitude * (b * std::cos(angle) + a * std::sin(angle));
      }
    }
  }
}

}  // namespace nanotron::kernels::reference
