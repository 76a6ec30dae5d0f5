#pragma once

// Activations of one argument, h = f(x), without weights (with weights: xielu.hpp):
//
//   GeluErf        x P(x), P(x) = (1 + erf(x / sqrt(2))) / 2                            transformers' 'gelu'
//   GeluTanh       x P(x), P(x) = (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)),              transformers' 'gelu_new'
//                  u = sqrt(2 / pi) (x + 0.044715 x^3)                                  (Hendrycks and Gimpel 2016)
//   Relu           max(x, 0)
//   ReluSquared    max(x, 0)^2                                                          (So et al. 2021, Primer)

#include <cmath>

#include "nanotron/base/elementary/error_function.hpp"
#include "nanotron/base/elementary/exponential.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

// Each has f(x) and its slope f'(x).

//   f' = P + x P'      P' = exp(-x^2 / 2) / sqrt(2 pi)
struct GeluErf {
  static constexpr const char *forward = "gelu_forward", *backward = "gelu_backward";
  template <class M>
  NANOTRON_FUNCTION static M gate(M x) {
    return M(0.5) * complementary_error(-x * M(0.70710678118654752440));
  }
  template <class M>
  NANOTRON_FUNCTION static M value(M x) {
    return x * gate(x);
  }
  template <class M>
  NANOTRON_FUNCTION static M slope(M x) {
    return gate(x) + x * M(0.39894228040143267794) * exponential(M(-0.5) * x * x);
  }
};

//   P' = P (1 - P) 2 u'      u' = sqrt(2 / pi) (1 + 3 0.044715 x^2)
struct GeluTanh {
  static constexpr const char *forward = "gelu_forward", *backward = "gelu_backward";
  static constexpr double twice = 2 * 0.79788456080286535588, cubic = 0.044715;
  template <class M>
  NANOTRON_FUNCTION static M gate(M x) {
    const M square = x * x;
    return M(1) / (M(1) + exponential(-M(twice) * x * (M(1) + M(cubic) * square)));
  }
  template <class M>
  NANOTRON_FUNCTION static M value(M x) {
    return x * gate(x);
  }
  template <class M>
  NANOTRON_FUNCTION static M slope(M x) {
    const M square = x * x, p = gate(x);
    return p + x * p * (M(1) - p) * M(twice) * (M(1) + M(3) * M(cubic) * square);
  }
};

struct Relu {
  static constexpr const char *forward = "relu_forward", *backward = "relu_backward";
  template <class M>
  NANOTRON_FUNCTION static M value(M x) {
    return x > M(0) ? x : M(0);
  }
  template <class M>
  NANOTRON_FUNCTION static M slope(M x) {
    return x > M(0) ? M(1) : M(0);
  }
};

struct ReluSquared {
  static constexpr const char *forward = "relu2_forward", *backward = "relu2_backward";
  template <class M>
  NANOTRON_FUNCTION static M value(M x) {
    return Relu::value(x) * x;
  }
  template <class M>
  NANOTRON_FUNCTION static M slope(M x) {
    return M(2) * Relu::value(x);
  }
};

/// x, h (rows, columns); h is overwritten and may alias x. Call with T and Form explicit.
template <class T, class Form>
void pointwise_forward(Device& device, Matrix<const T> x, Matrix<T> h);

/// dx = dh f'(x), overwritten; it may alias x or dh.
template <class T, class Form>
void pointwise_backward(Device& device, Matrix<const T> x, Matrix<const T> dh, Matrix<T> dx);

}  // namespace nanotron::kernels
