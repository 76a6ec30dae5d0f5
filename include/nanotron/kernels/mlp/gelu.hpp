#pragma once

// Gaussian error linear unit (Hendrycks and Gimpel, 2016), h = x P(x), in two forms:
//
//   GeluErf    P(x) = (1 + erf(x / sqrt(2))) / 2                                    transformers' 'gelu'
//   GeluTanh   P(x) = (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)),                      transformers' 'gelu_new'
//              u = sqrt(2 / pi) (x + 0.044715 x^3)

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

struct GeluErf {};
struct GeluTanh {};

/// x, h (rows, columns); h is overwritten and may alias x. Call with T and Form explicit.
template <class T, class Form>
void gelu_forward(Device& device, Matrix<const T> x, Matrix<T> h);

/// dx = dh (P(x) + x P'(x)), overwritten; it may alias x or dh.
template <class T, class Form>
void gelu_backward(Device& device, Matrix<const T> x, Matrix<const T> dh, Matrix<T> dx);

}  // namespace nanotron::kernels
