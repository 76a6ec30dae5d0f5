#include "nanotron/nn/mlp/activation.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/mlp/gated.hpp"
#include "nanotron/kernels/mlp/xielu.hpp"
#include "nanotron/nn/checks.hpp"

namespace nanotron::nn {
namespace {

// In a pass of their own.
template <class T>
void find_maxima(Device& device, Matrix<const T> x, const Vector<float>& maxima) {
  if (maxima.extent(0) > 0) kernels::row_maxima<T>(device, x, maxima);
}

template <class T, class Form>
class Gated final : public Activation<T> {
 public:
  using M = master_t<T>;
  explicit Gated(const Form& form) : form_(form) {}
  void forward(Device& device, Matrix<const T> in, Matrix<T> h, Vector<float> maxima) const override {
    kernels::gated_forward<T>(device, form_, in, h, maxima);
  }
  void backward(Device& device, Matrix<T> in, Matrix<const T> dh, Vector<float> maxima, Vector<M>) const override {
    kernels::gated_backward<T>(device, form_, in, dh, in, maxima);
  }
  void forward_weighted(Device& device, Matrix<const T> in, Vector<const M> weights, Matrix<T> h) const override {
    kernels::weighted_gated_forward<T>(device, form_, in, weights, h);
  }
  void backward_weighted(Device& device, Matrix<T> in, Vector<const M> weights, Matrix<const T> dh, Vector<M> dweights,
                         const SumOrder& order) const override {
    kernels::weighted_gated_backward<T>(device, form_, in, weights, dh, dweights, order);
  }

 private:
  Form form_;
};

template <class T, class Form>
class Pointwise final : public Activation<T> {
 public:
  using M = master_t<T>;
  void forward(Device& device, Matrix<const T> in, Matrix<T> h, Vector<float> maxima) const override {
    kernels::pointwise_forward<T, Form>(device, in, h);
    find_maxima<T>(device, h, maxima);
  }
  void backward(Device& device, Matrix<T> in, Matrix<const T> dh, Vector<float> maxima, Vector<M>) const override {
    kernels::pointwise_backward<T, Form>(device, in, dh, in);
    find_maxima<T>(device, in, maxima);
  }
};

template <class T>
class Xielu final : public Activation<T> {
 public:
  using M = master_t<T>;
  explicit Xielu(const ActivationSource<T>& source)
      : scalars_(source.scalars),
        a_p_gradient_(source.a_p_gradient),
        a_n_gradient_(source.a_n_gradient),
        order_(source.order),
        tp_(source.tp) {}
  comm::StepTraffic gradient_traffic() const override {
    if (tp_ == nullptr) return {};
    const index_t addends = 2 * order_.token_segments;
    return {.tensor_parallel = comm::all_reduce_bytes(addends * static_cast<index_t>(sizeof(M)), tp_->size())};
  }
  void forward(Device& device, Matrix<const T> in, Matrix<T> h, Vector<float> maxima) const override {
    kernels::xielu_forward<T>(device, scalars_, in, h);
    find_maxima<T>(device, h, maxima);
  }
  void backward(Device& device, Matrix<T> in, Matrix<const T> dh, Vector<float> maxima, Vector<M> sums) const override {
    scalars_backward(device, in, dh, sums);
    find_maxima<T>(device, in, maxima);
  }

 private:
  void scalars_backward(Device& device, const Matrix<T>& in, const Matrix<const T>& dh, const Vector<M>& sums) const {
    if (tp_ == nullptr) return kernels::xielu_backward<T>(device, scalars_, in, dh, a_p_gradient_, a_n_gradient_, sums);
    const Matrix<M> parts = kernels::xielu_backward_parts<T>(device, scalars_, in, dh, sums, order_);
    comm::all_reduce<M>(*tp_, parts.data(), elements_of(parts), comm::ReduceOp::sum, device.stream());
    const MatrixRef<const M> both = Matrix<const M>(parts);
    kernels::add_tree<M>(device, {both.data, both.rows, 1, both.leading}, a_p_gradient_);
    kernels::add_tree<M>(device, {both.data + 1, both.rows, 1, both.leading}, a_n_gradient_);
  }

  kernels::ActivationScalars<M> scalars_;
  Vector<M> a_p_gradient_, a_n_gradient_;
  kernels::ScalarOrder order_;
  comm::Group* tp_;
};

template <class T, class Form>
std::shared_ptr<const Activation<T>> gated(const Form& form) {
  return std::make_shared<Gated<T, Form>>(form);
}
template <class T, class Form>
std::shared_ptr<const Activation<T>> pointwise() {
  return std::make_shared<Pointwise<T, Form>>();
}

}  // namespace

template <class T>
void Activation<T>::forward_weighted(Device&, Matrix<const T>, Vector<const M>, Matrix<T>) const {
  NANOTRON_REQUIRE(false, "an activation without a gate takes no weights of rows");
}
template <class T>
void Activation<T>::backward_weighted(Device&, Matrix<T>, Vector<const M>, Matrix<const T>, Vector<M>,
                                      const SumOrder&) const {
  NANOTRON_REQUIRE(false, "an activation without a gate takes no weights of rows");
}

template <class T>
std::shared_ptr<const Activation<T>> make_activation(const ActivationSource<T>& source) {
  using deck::HiddenAct;
  const deck::ModelConfig& m = source.model;
  switch (m.hidden_act) {
    case HiddenAct::gelu:
      return pointwise<T, kernels::GeluErf>();
    case HiddenAct::gelu_new:
      return pointwise<T, kernels::GeluTanh>();
    case HiddenAct::relu:
      return pointwise<T, kernels::Relu>();
    case HiddenAct::relu2:
      return pointwise<T, kernels::ReluSquared>();
    case HiddenAct::xielu:
      return std::make_shared<Xielu<T>>(source);
    case HiddenAct::geglu:
      return gated<T>(kernels::Geglu<kernels::GeluErf>());
    case HiddenAct::geglu_tanh:
      return gated<T>(kernels::Geglu<kernels::GeluTanh>());
    case HiddenAct::swiglu_clamped:
      return gated<T>(kernels::ClampedSwiglu{.limit = m.swiglu_limit, .alpha = m.swiglu_alpha});
    default:
      return gated<T>(kernels::Swiglu());
  }
}

index_t activation_sums(deck::HiddenAct kind, Processor processor, index_t tokens, index_t width,
                        const kernels::ScalarOrder& order) {
  return kind == deck::HiddenAct::xielu ? kernels::xielu_workspace_size(processor, tokens, width, order) : 0;
}

#define NANOTRON_INSTANTIATE(T) \
  template class Activation<T>; \
  template std::shared_ptr<const Activation<T>> make_activation(const ActivationSource<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

void check_activation(const deck::Config& c, deck::Findings& f) {
  using deck::HiddenAct;
  if (!f.is_valid({"model.hidden_act"})) return;
  if (c.model.hidden_act != HiddenAct::swiglu_clamped) {
    refuse_unused(c, {"model.swiglu_limit", "model.swiglu_alpha"}, "clamped SwiGLU",
                  "hidden_act = 'swiglu_clamped', or no swiglu_limit and swiglu_alpha", f);
  }
}

}  // namespace nanotron::nn
