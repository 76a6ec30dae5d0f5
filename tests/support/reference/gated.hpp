#pragma once

// Reference implementations of kernels/mlp/gated, see reference/gemm.hpp.

#include <algorithm>
#include <cmath>

#include "nanotron/kernels/mlp/gated.hpp"
#include "nanotron/tensor/tensor.hpp"
#include "support/reference/pointwise.hpp"

namespace nanotron::kernels::reference {

template <class T>
void swiglu_forward(MatrixRef<const T> gate_up, MatrixRef<double> h) {
  for (index_t i = 0; i < h.rows; ++i) {
    for (index_t c = 0; c < h.columns; ++c) {
      const double gate = gate_up(i, c);
      h(i, c) = gate / (1.0 + std::exp(-gate)) * static_cast<double>(gate_up(i, h.columns + c));
    }
  }
}

template <class T>
void swiglu_backward(MatrixRef<const T> gate_up, MatrixRef<const T> dh, MatrixRef<double> dgate_up) {
  for (index_t i = 0; i < dh.rows; ++i) {
    for (index_t c = 0; c < dh.columns; ++c) {
      const double gate = gate_up(i, c);
      const double up = gate_up(i, dh.columns + c);
      const double s = 1.0 / (1.0 + std::exp(-gate));
      const double gradient = dh(i, c);
      dgate_up(i, c) = gradient * up * s * (1.0 + gate * (1.0 - s));
      dgate_up(i, dh.columns + c) = gradient * gate * s;
    }
  }
}

/// h and dh/dgate, dh/dup of one element of the other forms.
struct GatedPoint {
  double h, by_gate, by_up;
};
template <class Gelu>
GatedPoint gated(const Geglu<Gelu>&, double gate, double up) {
  return {value(Gelu{}, gate) * up, slope(Gelu{}, gate) * up, value(Gelu{}, gate)};
}
inline GatedPoint gated(const ClampedSwiglu& form, double gate, double up) {
  const double g = std::min(gate, form.limit), u = std::clamp(up, -form.limit, form.limit);
  const double s = 1.0 / (1.0 + std::exp(-form.alpha * g));
  return {(u + 1.0) * g * s, gate > form.limit ? 0.0 : (u + 1.0) * s * (1.0 + form.alpha * g * (1.0 - s)),
          std::abs(up) > form.limit ? 0.0 : g * s};
}

}  // namespace nanotron::kernels::reference
