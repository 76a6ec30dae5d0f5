#pragma once

// Gated linear units (Shazeer 2020), h = f(gate, up):
//
//   Swiglu           silu(gate) up, silu(x) = x / (1 + exp(-x))
//   Geglu<Gelu>      gelu(gate) up (kernels/mlp/pointwise.hpp)
//   ClampedSwiglu    (u + 1) g / (1 + exp(-alpha g)), g = min(gate, limit), u = up within [-limit, limit] (GPT-OSS)
//
// maxima (tokens): max |x| of each row that is written (row_maxima of elementwise.hpp); empty where not needed.

#include "nanotron/kernels/mlp/pointwise.hpp"
#include "nanotron/tensor/sum_order.hpp"

namespace nanotron::kernels {

template <class T>
struct GateUp {
  T gate, up;
};

/// One element of the gradient of Swiglu. With s = 1 / (1 + exp(-gate)):
///   dgate = dh up s (1 + gate (1 - s))      dup = dh gate s
template <class T>
NANOTRON_FUNCTION GateUp<T> swiglu_gradient(T gate, T up, T dh) {
  using M = master_t<T>;
  const M x = static_cast<M>(gate), u = static_cast<M>(up), g = static_cast<M>(dh);
  const M s = M(1) / (M(1) + exponential(-x));
  return {static_cast<T>(g * u * s * (M(1) + x * (M(1) - s))), static_cast<T>(g * x * s)};
}

// Each has f; the same in the form that is summed over a row for the gradient of its weight; and the gradient of f.

struct Swiglu {
  static constexpr const char *forward = "swiglu_forward", *backward = "swiglu_backward";
  static constexpr const char *weighted_forward = "weighted_swiglu_forward",
                              *weighted_backward = "weighted_swiglu_backward";
  template <class M>
  NANOTRON_FUNCTION M value(M gate, M up) const {
    const M s = M(1) / (M(1) + exponential(-gate));
    return gate * s * up;
  }
  template <class M>
  NANOTRON_FUNCTION M term(M gate, M up) const {
    return gate / (M(1) + exponential(-gate)) * up;
  }
  template <class M>
  NANOTRON_FUNCTION GateUp<M> gradient(M gate, M up, M dh) const {
    return swiglu_gradient(gate, up, dh);
  }
};

template <class Gelu>
struct Geglu {
  static constexpr const char *forward = "geglu_forward", *backward = "geglu_backward";
  static constexpr const char *weighted_forward = "weighted_geglu_forward",
                              *weighted_backward = "weighted_geglu_backward";
  template <class M>
  NANOTRON_FUNCTION M value(M gate, M up) const {
    return Gelu::value(gate) * up;
  }
  template <class M>
  NANOTRON_FUNCTION M term(M gate, M up) const {
    return value(gate, up);
  }
  template <class M>
  NANOTRON_FUNCTION GateUp<M> gradient(M gate, M up, M dh) const {
    return {dh * up * Gelu::slope(gate), dh * Gelu::value(gate)};
  }
};

struct ClampedSwiglu {
  static constexpr const char *forward = "clamped_swiglu_forward", *backward = "clamped_swiglu_backward";
  static constexpr const char *weighted_forward = "weighted_clamped_swiglu_forward",
                              *weighted_backward = "weighted_clamped_swiglu_backward";
  double limit, alpha;

  template <class M>
  NANOTRON_FUNCTION M value(M gate, M up) const {
    const M top = M(limit), x = gate < top ? gate : top, u = up < -top ? -top : up < top ? up : top;
    return (u + M(1)) * x / (M(1) + exponential(-M(alpha) * x));
  }
  template <class M>
  NANOTRON_FUNCTION M term(M gate, M up) const {
    return value(gate, up);
  }
  // A clamped operand has no gradient.
  template <class M>
  NANOTRON_FUNCTION GateUp<M> gradient(M gate, M up, M dh) const {
    const M top = M(limit), x = gate < top ? gate : top, u = up < -top ? -top : up < top ? up : top;
    const M s = M(1) / (M(1) + exponential(-M(alpha) * x));
    const M dgate = dh * (u + M(1)) * s * (M(1) + M(alpha) * x * (M(1) - s));
    return {gate > top ? M(0) : dgate, up < -top || up > top ? M(0) : dh * x * s};
  }
};

/// gate_up (tokens, 2 f): f columns of the gate, then f of the up projection; h (tokens, f) is overwritten. Call with T
/// explicit.
template <class T, class Form>
void gated_forward(Device& device, const Form& form, Matrix<const T> gate_up, Matrix<T> h, Vector<float> maxima = {});

/// dgate_up (tokens, 2 f) is overwritten and may alias gate_up.
template <class T, class Form>
void gated_backward(Device& device, const Form& form, Matrix<const T> gate_up, Matrix<const T> dh, Matrix<T> dgate_up,
                    Vector<float> maxima = {});

// The same of an expert, each row scaled by the routing weight of its token. Scaled here, the output of the down
// projection needs no weight, and backward needs no saved copy of it:
//
//   h = w f(gate, up)            dw = sum over the row of dh f(gate, up)
//   dgate, dup as above, with w dh for dh

/// gate_up (rows, gate | up), weights (rows) -> h (rows, width), overwritten.
template <class T, class Form>
void weighted_gated_forward(Device& device, const Form& form, Matrix<const T> gate_up,
                            Vector<const master_t<T>> weights, Matrix<T> h);

/// gate_up is overwritten by its gradient; dweights (rows) is overwritten. order: of the sum over columns.
template <class T, class Form>
void weighted_gated_backward(Device& device, const Form& form, Matrix<T> gate_up, Vector<const master_t<T>> weights,
                             Matrix<const T> dh, Vector<master_t<T>> dweights, const SumOrder& order = {});

}  // namespace nanotron::kernels
