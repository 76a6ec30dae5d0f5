#include "nanotron/nn/mlp/activation.hpp"

#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/mlp/gelu.hpp"
#include "nanotron/kernels/mlp/swiglu.hpp"

namespace nanotron::nn {
namespace {

// In a pass of their own.
template <class T>
void find_maxima(Device& device, Matrix<const T> x, const Vector<float>& maxima) {
  if (maxima.extent(0) > 0) kernels::row_maxima<T>(device, x, maxima);
}

template <class T>
class Swiglu final : public Activation<T> {
 public:
  void forward(Device& device, Matrix<const T> in, Matrix<T> h, Vector<float> maxima) const override {
    kernels::swiglu_forward<T>(device, in, h, maxima);
  }
  void backward(Device& device, Matrix<T> in, Matrix<const T> dh, Vector<float> maxima) const override {
    kernels::swiglu_backward<T>(device, in, dh, in, maxima);
  }
};

template <class T, class Form>
class Gelu final : public Activation<T> {
 public:
  void forward(Device& device, Matrix<const T> in, Matrix<T> h, Vector<float> maxima) const override {
    kernels::gelu_forward<T, Form>(device, in, h);
    find_maxima<T>(device, h, maxima);
  }
  void backward(Device& device, Matrix<T> in, Matrix<const T> dh, Vector<float> maxima) const override {
    kernels::gelu_backward<T, Form>(device, in, dh, in);
    find_maxima<T>(device, in, maxima);
  }
};

}  // namespace

template <class T>
const Activation<T>& activation_of(deck::HiddenAct kind) {
  static const Swiglu<T> swiglu;
  static const Gelu<T, kernels::GeluErf> by_erf;
  static const Gelu<T, kernels::GeluTanh> by_tanh;
  switch (kind) {
    case deck::HiddenAct::gelu:
      return by_erf;
    case deck::HiddenAct::gelu_new:
      return by_tanh;
    default:
      return swiglu;
  }
}

#define NANOTRON_INSTANTIATE(T) template const Activation<T>& activation_of(deck::HiddenAct);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::nn
