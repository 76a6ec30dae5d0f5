#include "nanotron/model/layers/decoder_layer.hpp"

#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::model {
namespace {

// What a block's last GEMM adds to its output, and what the output is then.
template <class T>
Matrix<const T> addend(ResidualSum sum, const Matrix<T>& x) {
  return sum == ResidualSum::in_gemm ? Matrix<const T>(x) : Matrix<const T>();
}
template <class T>
nn::HiddenStates<T> hidden_states(ResidualSum sum, const Matrix<T>& x, const Matrix<T>& output) {
  return sum == ResidualSum::in_gemm ? nn::HiddenStates<T>{output} : nn::HiddenStates<T>{output, x};
}

}  // namespace

// Whole backward gathers the inputs of both blocks again; backward in two parts also gathers the gradients of their
// outputs again. What recompute = 'full' does again ends before the output of the feed-forward network.
template <class T>
LayerTraffic DecoderLayer<T>::traffic() const {
  const nn::PassTraffic blocks = attention_->traffic(*tp_region_) + feed_forward_->traffic(*tp_region_);
  const comm::StepTraffic inputs = tp_region_->regather_traffic() + attention_->regather_traffic(*tp_region_);
  return {.forward = blocks.forward + blocks.output,
          .recompute = blocks.forward,
          .backward = blocks.backward + inputs,
          .backward_input = blocks.backward,
          .backward_weight = 2 * tp_region_->gather_traffic() + inputs};
}

//   x_mid = x + attention(norm(x))        x_out = x_mid + mlp(norm(x_mid))
template <class T>
nn::HiddenStates<T> DecoderLayer<T>::forward(Device& device, const nn::TokenBatch& batch, const nn::HiddenStates<T>& x,
                                             const LayerActivations<T>& act, const Workspace<T>& work,
                                             Matrix<T> x_out) const {
  flight_recorder().at_part("attention");
  input_norm_->forward(device, x, act.input_norm, act.input_statistics, act.attention.of_input.maxima);
  attention_
      ->forward(device, batch, *tp_region_, act.attention_input(), act.attention, work.attention,
                addend(attention_sum_, x.x), act.middle)
      .wait();
  attention_->add_output_bias(device, *tp_region_, act.middle);
  const nn::HiddenStates<T> x_mid = hidden_states(attention_sum_, x.x, act.middle);

  flight_recorder().at_part("mlp");
  middle_norm_->forward(device, x_mid, act.middle_norm, act.middle_statistics, act.feed_forward.mlp.of_input.maxima);
  feed_forward_->forward_to_last_gemm(device, batch, *tp_region_, act.mlp_input(), act.feed_forward, work.feed_forward);
  if (x_out.extent(0) == 0) return {};
  feed_forward_
      ->forward_output(device, batch, *tp_region_, act.feed_forward, work.feed_forward,
                       addend(feed_forward_sum_, act.middle), x_out)
      .wait();
  feed_forward_->add_output_bias(device, *tp_region_, x_out);
  return hidden_states(feed_forward_sum_, act.middle, x_out);
}

// dx: gradient of x_out on entry; dn: gradient of a norm's output.
//   dn = mlp backward of dx               dx += norm backward of dn: the gradient of x_mid
//   dn = attention backward of dx         dx += norm backward of dn: the gradient of x
// The all-gather of a block's input overlaps the computation of dn. The reduction of dn over the tensor-parallel group
// overlaps the GEMM of the input weight's gradient.
template <class T>
void DecoderLayer<T>::backward(Device& device, const nn::TokenBatch& batch, Matrix<const T> x,
                               const LayerActivations<T>& act, const Workspace<T>& work, Matrix<T> dx) const {
  flight_recorder().at_part("mlp");
  feed_forward_->backward_output_weight(
      device, feed_forward_->backward_inside(device, *tp_region_, dx, act.feed_forward, work.feed_forward),
      act.feed_forward, work.feed_forward);
  nn::PendingGather<T> n = tp_region_->start_regather(device, act.mlp_input());
  nn::Pending dn =
      feed_forward_->backward_input(device, batch, *tp_region_, act.feed_forward, work.feed_forward, work.dn);
  feed_forward_->backward_input_weight(device, n.wait(), act.feed_forward, work.feed_forward);
  dn.wait();
  middle_norm_backward(device, act, work, dx);

  flight_recorder().at_part("attention");
  attention_->backward_output_weight(
      device, attention_->backward_inside(device, batch, *tp_region_, dx, act.attention, work.attention), act.attention,
      work.attention);
  n = attention_->start_regather(device, *tp_region_, act.attention_input(), act.attention);
  dn = attention_->backward_input(device, *tp_region_, act.attention, work.attention, work.dn);
  attention_->backward_input_weight(device, act.attention_input(), n.wait(), nn::GradientsIn::workspace, act.attention,
                                    work.attention);
  dn.wait();
  input_norm_backward(device, x, act, work, dx);
}

template <class T>
void DecoderLayer<T>::backward_input(Device& device, const nn::TokenBatch& batch, Matrix<const T> x,
                                     const LayerActivations<T>& act, const Workspace<T>& work, Matrix<T> x_out,
                                     Matrix<T> dx) const {
  flight_recorder().at_part("mlp");
  feed_forward_->backward_inside(device, *tp_region_, dx, act.feed_forward, work.feed_forward);
  nn::Pending dn =
      feed_forward_->backward_input(device, batch, *tp_region_, act.feed_forward, work.feed_forward, work.dn);
  kernels::copy_matrix<T>(device, dx, x_out);
  dn.wait();
  middle_norm_backward(device, act, work, dx);

  flight_recorder().at_part("attention");
  attention_->backward_inside(device, batch, *tp_region_, dx, act.attention, work.attention);
  dn = attention_->backward_input(device, *tp_region_, act.attention, work.attention, work.dn);
  kernels::copy_matrix<T>(device, dx, act.middle);
  attention_->keep_gradients(device, act.attention, work.attention);
  dn.wait();
  input_norm_backward(device, x, act, work, dx);
}

template <class T>
void DecoderLayer<T>::backward_weight(Device& device, const LayerActivations<T>& act, const Workspace<T>& work,
                                      Matrix<const T> dx_out) const {
  flight_recorder().at_part("mlp");
  feed_forward_->backward_output_weight(device, tp_region_->gather(device, dx_out), act.feed_forward,
                                        work.feed_forward);
  feed_forward_->backward_input_weight(device, tp_region_->start_regather(device, act.mlp_input()).wait(),
                                       act.feed_forward, work.feed_forward);
  flight_recorder().at_part("attention");
  attention_->backward_output_weight(device, tp_region_->gather(device, act.middle), act.attention, work.attention);
  attention_->backward_input_weight(
      device, act.attention_input(),
      attention_->start_regather(device, *tp_region_, act.attention_input(), act.attention).wait(),
      nn::GradientsIn::activations, act.attention, work.attention);
}

template <class T>
void DecoderLayer<T>::middle_norm_backward(Device& device, const LayerActivations<T>& act, const Workspace<T>& work,
                                           Matrix<T> dx) const {
  middle_norm_->backward(device, work.dn, act.middle, act.middle_statistics, dx, work.sums);
}

template <class T>
void DecoderLayer<T>::input_norm_backward(Device& device, Matrix<const T> x, const LayerActivations<T>& act,
                                          const Workspace<T>& work, Matrix<T> dx) const {
  input_norm_->backward(device, work.dn, x, act.input_statistics, dx, work.sums);
}

template <class T>
void DecoderLayer<T>::recompute_selective(Device& device, Matrix<T> x, const LayerActivations<T>& act) const {
  if (act.input_norm_kept.extent(0) == 0)
    input_norm_->forward(device, {x}, act.input_norm, act.input_statistics, act.attention.of_input.maxima);
  if (act.middle_norm_kept.extent(0) == 0) {
    middle_norm_->forward(device, {act.middle}, act.middle_norm, act.middle_statistics,
                          act.feed_forward.mlp.of_input.maxima);
  }
  feed_forward_->compute_hidden(device, act.feed_forward);
}

NANOTRON_INSTANTIATE_CLASS(DecoderLayer)

}  // namespace nanotron::model
