#pragma once

// The activation between the two GEMMs of a feed-forward network: gated, of the two halves gate and up, or of one
// argument, perhaps with learnt scalars.
//
//   silu, geglu, geglu_tanh, swiglu_clamped      h = f(gate, up)      kernels/mlp/gated.hpp
//   gelu, gelu_new, relu, relu2                  h = f(up)            kernels/mlp/pointwise.hpp
//   xielu                                        h = f(up)            kernels/mlp/xielu.hpp

#include <memory>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/watch/step_traffic.hpp"
#include "nanotron/deck/keys/model.hpp"
#include "nanotron/kernels/mlp/activation_scalars.hpp"
#include "nanotron/nn/linear/linear.hpp"

namespace nanotron::nn {

/// What the activation of a layer is made from. Views of its scalars and their gradients are empty where it has none.
template <class T>
struct ActivationSource {
  using M = master_t<T>;
  const deck::ModelConfig& model;
  kernels::ActivationScalars<M> scalars{};
  Vector<M> a_p_gradient{}, a_n_gradient{};
  kernels::ScalarOrder order{};  // of the sums in these gradients
  comm::Group* tp = nullptr;     // adds their addends in backward; null: each rank has a partial sum of them
};

template <class T>
class Activation {
 public:
  using M = master_t<T>;
  virtual ~Activation() = default;
  /// in (tokens, gate | up, or up) -> h (tokens, width), overwritten. maxima (tokens): max |x| of each row that is
  /// written; empty where not needed.
  virtual void forward(Device& device, Matrix<const T> in, Matrix<T> h, Vector<float> maxima) const = 0;
  /// in is overwritten by its gradient; or only the gradient's maxima are written, and input_gradient computes it. The
  /// gradients of the activation's own weights are accumulated, by way of sums (activation_sums).
  virtual void backward(Device& device, Matrix<T> in, Matrix<const T> dh, Vector<float> maxima,
                        Vector<M> sums) const = 0;
  /// What a call of backward communicates.
  virtual comm::StepTraffic gradient_traffic() const { return {}; }
  /// After backward: the GEMM of in's gradient and the weight of the linear layer that computed `in`.
  virtual RowGemm<T> input_gradient(const Linear<T>& first, const Vector<float>& maxima, Matrix<const T>) const {
    return first.backward_input(maxima);
  }

  /// With a weight of each row: weighted_gated_forward and weighted_gated_backward of
  /// kernels/mlp/gated.hpp. Only of gated activations.
  virtual void forward_weighted(Device& device, Matrix<const T> in, Vector<const M> weights, Matrix<T> h) const;
  virtual void backward_weighted(Device& device, Matrix<T> in, Vector<const M> weights, Matrix<const T> dh,
                                 Vector<M> dweights, const SumOrder& order) const;
};

template <class T>
std::shared_ptr<const Activation<T>> make_activation(const ActivationSource<T>& source);

/// Elements of the workspace of Activation::backward.
index_t activation_sums(deck::HiddenAct kind, Processor processor, index_t tokens, index_t width,
                        const kernels::ScalarOrder& order);

}  // namespace nanotron::nn
