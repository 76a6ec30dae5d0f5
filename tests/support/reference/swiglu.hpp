#pragma once

// Reference implementations of kernels/swiglu, see reference/gemm.hpp.

#include <cmath>

#include "nanotron/tensor/tensor.hpp"

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

}  // namespace nanotron::kernels::reference
