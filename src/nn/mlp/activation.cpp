#include "nanotron/nn/mlp/activation.hpp"

#include "nanotron/kernels/mlp/gelu.hpp"
#include "nanotron/kernels/mlp/swiglu.hpp"

namespace nanotron::nn {
namespace {

template <class T>
class Swiglu final : public Activation<T> {
 public:
  void forward(Device& device, Matrix<const T> in, Matrix<T> h) const override {
    kernels::swiglu_forward<T>(device, in, h);
  }
  void backward(Device& device, Matrix<T> in, Matrix<const T> dh) const override {
    kernels::swiglu_backward<T>(device, in, dh, in);
  }
};

template <class T, class Form>
class Gelu final : public Activation<T> {
 public:
  void forward(Device& device, Matrix<const T> in, Matrix<T> h) const override {
    kernels::gelu_forward<T, Form>(device, in, h);
  }
  void backward(Device& device, Matrix<T> in, Matrix<const T> dh) const override {
    kernels::gelu_backward<T, Form>(device, in, dh, in);
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

template const Activation<double>& activation_of(deck::HiddenAct);
template const Activation<float>& activation_of(deck::HiddenAct);
template const Activation<bf16>& activation_of(deck::HiddenAct);

}  // namespace nanotron::nn
