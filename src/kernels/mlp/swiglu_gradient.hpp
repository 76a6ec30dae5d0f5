#pragma once

// One element of swiglu_backward. Private to kernels/mlp.

#include "nanotron/kernels/loop/scalar_math.hpp"

namespace nanotron::kernels {

template <class T>
struct GateUp {
  T gate, up;
};

/// With s = 1 / (1 + exp(-gate)):      dgate = dh up s (1 + gate (1 - s))      dup = dh gate s
template <class T>
NANOTRON_FUNCTION GateUp<T> swiglu_gradient(T gate, T up, T dh) {
  using M = master_t<T>;
  const M x = static_cast<M>(gate), u = static_cast<M>(up), g = static_cast<M>(dh);
  const M s = M(1) / (M(1) + exponential(-x));
  return {static_cast<T>(g * u * s * (M(1) + x * (M(1) - s))), static_cast<T>(g * x * s)};
}

}  // namespace nanotron::kernels
