#include "nanotron/model/decoder_layer.hpp"

#include "nanotron/kernels/elementwise.hpp"
#include "nanotron/kernels/rms_norm.hpp"

namespace nanotron::model {
namespace {

template <class T>
Vector<T> flat(const Matrix<T>& m) {
  return Vector<T>(m.data(), m.size());
}

}  // namespace

// act.middle holds attention's output on entry and x_mid on return.
template <class T>
void DecoderLayer<T>::feed_forward(Device& device, Matrix<const T> x, const LayerActivations<T>& act,
                                   Matrix<T> x_out) const {
  kernels::add_rms_norm_forward<T>(device, x, act.middle, act.middle, middle_norm_.weight, eps_,
                                   act.middle_norm, act.middle_rstd);
  mlp_.forward(device, act.middle_norm, act.mlp, x_out);
  kernels::add<T>(device, flat<const T>(act.middle), flat<T>(x_out));
}

//   x_mid = x + attention(norm(x))        x_out = x_mid + mlp(norm(x_mid))
template <class T>
void DecoderLayer<T>::forward(Device& device, const nn::TokenBatch& batch, Matrix<const T> x,
                              const LayerActivations<T>& act, const Workspace<T>& work,
                              Matrix<T> x_out) const {
  kernels::rms_norm_forward<T>(device, x, input_norm_.weight, eps_, act.input_norm, act.input_rstd);
  attention_.forward(device, batch, act.input_norm, act.attention, work.attention, act.middle);
  feed_forward(device, x, act, x_out);
}

// With dx the gradient of x_out on entry, dn that of a norm's output:
//   dn = mlp backward of dx               dx += norm backward of dn: the gradient of x_mid
//   dn = attention backward of dx         dx += norm backward of dn: the gradient of x
template <class T>
void DecoderLayer<T>::backward(Device& device, const nn::TokenBatch& batch, Matrix<const T> x,
                               const LayerActivations<T>& act, const Workspace<T>& work) const {
  mlp_.backward(device, act.middle_norm, work.dx, act.mlp, work.dhidden, work.dn).wait();
  kernels::rms_norm_backward<T>(device, work.dn, act.middle, middle_norm_.weight, act.middle_rstd,
                                work.dx, middle_norm_.gradient, work.sums);
  attention_.backward(device, batch, act.input_norm, work.dx, act.attention, work.attention, work.dn)
      .wait();
  kernels::rms_norm_backward<T>(device, work.dn, x, input_norm_.weight, act.input_rstd, work.dx,
                                input_norm_.gradient, work.sums);
}

template <class T>
void DecoderLayer<T>::recompute_cheap(Device& device, Matrix<const T> x,
                                      const LayerActivations<T>& act) const {
  kernels::rms_norm_forward<T>(device, x, input_norm_.weight, eps_, act.input_norm, act.input_rstd);
  kernels::rms_norm_forward<T>(device, act.middle, middle_norm_.weight, eps_, act.middle_norm,
                               act.middle_rstd);
  mlp_.recompute_hidden(device, act.mlp);
}

template <class T>
void DecoderLayer<T>::forward_cached(Device& device, const nn::TokenBatch& batch, index_t past,
                                     Matrix<const T> x, const LayerActivations<T>& act,
                                     const Workspace<T>& work, const nn::KeyValueCache<T>& cache,
                                     Matrix<T> x_out) const {
  kernels::rms_norm_forward<T>(device, x, input_norm_.weight, eps_, act.input_norm, act.input_rstd);
  attention_.forward_cached(device, batch, past, act.input_norm, act.attention, work.attention, cache,
                            act.middle);
  feed_forward(device, x, act, x_out);
}

template class DecoderLayer<double>;
template class DecoderLayer<float>;
template class DecoderLayer<bf16>;

}  // namespace nanotron::model
