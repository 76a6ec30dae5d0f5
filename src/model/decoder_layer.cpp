#include "nanotron/model/decoder_layer.hpp"

#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/kernels/elementwise/copy_matrix.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::model {
namespace {

template <class T>
Vector<T> flat(const Matrix<T>& m) {
  return Vector<T>(m.data(), m.size());
}

// What a block's last GEMM adds.
template <class T>
Matrix<const T> addend(ResidualSum sum, Matrix<const T> x) {
  return sum == ResidualSum::in_gemm ? x : Matrix<const T>();
}

}  // namespace

// Whole backward gathers the inputs of both blocks again; backward in two parts also gathers the gradients of their
// outputs again. What recompute = 'full' does again ends before the output of the feed-forward network.
template <class T>
LayerTraffic DecoderLayer<T>::traffic() const {
  const nn::PassTraffic blocks = attention_.traffic(*tp_region_) + feed_forward_->traffic(*tp_region_);
  const comm::StepTraffic inputs = 2 * tp_region_->regather_traffic();
  return {.forward = blocks.forward + blocks.output,
          .recompute = blocks.forward,
          .backward = blocks.backward + inputs,
          .backward_input = blocks.backward,
          .backward_weight = 2 * tp_region_->gather_traffic() + inputs};
}

// act.middle: attention's output without its bias, or the sum of that and x, on entry; x_mid on return.
template <class T>
void DecoderLayer<T>::middle_forward(Device& device, const nn::TokenBatch& batch, Matrix<const T> x,
                                     const LayerActivations<T>& act, const Workspace<T>& work) const {
  attention_.add_output_bias(device, *tp_region_, act.middle);
  const Vector<float> maxima = act.feed_forward.mlp.of_input.maxima;
  if (attention_sum_ == ResidualSum::in_gemm) {
    middle_norm_->forward(device, act.middle, act.middle_norm, act.middle_statistics, maxima);
  } else {
    middle_norm_->add_forward(device, x, act.middle, act.middle, act.middle_norm, act.middle_statistics, maxima);
  }
  flight_recorder().at_part("mlp");
  feed_forward_->forward_inside(device, batch, *tp_region_, act.mlp_input(), act.feed_forward, work.feed_forward);
}

template <class T>
void DecoderLayer<T>::forward_output(Device& device, const nn::TokenBatch& batch, const LayerActivations<T>& act,
                                     const Workspace<T>& work, Matrix<T> x_out) const {
  feed_forward_
      ->forward_output(device, batch, *tp_region_, act.feed_forward, work.feed_forward,
                       addend<T>(feed_forward_sum_, act.middle), x_out)
      .wait();
  feed_forward_->add_output_bias(device, *tp_region_, x_out);
}

template <class T>
void DecoderLayer<T>::normalise_input(Device& device, Matrix<const T> x, const LayerActivations<T>& act) const {
  input_norm_->forward(device, x, act.input_norm, act.input_statistics, act.attention.of_input.maxima);
}

template <class T>
void DecoderLayer<T>::complete_and_normalise_input(Device& device, const LayerActivations<T>& act_before, Matrix<T> x,
                                                   const LayerActivations<T>& act) const {
  if (feed_forward_sum_ == ResidualSum::in_gemm) return normalise_input(device, x, act);
  input_norm_->add_forward(device, act_before.middle, x, x, act.input_norm, act.input_statistics,
                           act.attention.of_input.maxima);
}

template <class T>
void DecoderLayer<T>::complete(Device& device, const LayerActivations<T>& act, Matrix<T> x_out) const {
  if (feed_forward_sum_ == ResidualSum::in_gemm) return;
  kernels::add<T>(device, flat<const T>(act.middle), flat<T>(x_out));
}

//   x_mid = x + attention(norm(x))        x_out = x_mid + mlp(norm(x_mid))
template <class T>
void DecoderLayer<T>::forward_inside(Device& device, const nn::TokenBatch& batch, Matrix<const T> x,
                                     const LayerActivations<T>& act, const Workspace<T>& work) const {
  flight_recorder().at_part("attention");
  attention_
      .forward(device, batch, *tp_region_, act.attention_input(), act.attention, work.attention,
               addend<T>(attention_sum_, x), act.middle)
      .wait();
  middle_forward(device, batch, x, act, work);
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
  attention_.backward_output_weight(
      device, attention_.backward_inside(device, batch, *tp_region_, dx, act.attention, work.attention), act.attention,
      work.attention);
  n = tp_region_->start_regather(device, act.attention_input());
  dn = attention_.backward_input(device, *tp_region_, work.attention, work.dn);
  attention_.backward_input_weight(device, n.wait(), work.attention.dqkv, act.attention, work.attention);
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
  attention_.backward_inside(device, batch, *tp_region_, dx, act.attention, work.attention);
  dn = attention_.backward_input(device, *tp_region_, work.attention, work.dn);
  kernels::copy_matrix<T>(device, dx, act.middle);
  kernels::copy_matrix<T>(device, work.attention.dqkv, act.attention.qkv);
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
  attention_.backward_output_weight(device, tp_region_->gather(device, act.middle), act.attention, work.attention);
  attention_.backward_input_weight(device, tp_region_->start_regather(device, act.attention_input()).wait(),
                                   act.attention.qkv, act.attention, work.attention);
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
void DecoderLayer<T>::recompute_selective(Device& device, Matrix<const T> x, const LayerActivations<T>& act) const {
  if (act.input_norm_kept.extent(0) == 0) {
    normalise_input(device, x, act);
    middle_norm_->forward(device, act.middle, act.middle_norm, act.middle_statistics,
                          act.feed_forward.mlp.of_input.maxima);
  }
  feed_forward_->compute_hidden(device, act.feed_forward);
}

template <class T>
void DecoderLayer<T>::forward_cached(Device& device, const nn::TokenBatch& batch, index_t past, Matrix<const T> x,
                                     const LayerActivations<T>& act, const Workspace<T>& work,
                                     const nn::KeyValueCache<T>& cache) const {
  attention_.forward_cached(device, batch, past, act.input_norm, act.attention, work.attention, cache,
                            addend<T>(attention_sum_, x), act.middle);
  tp_region_->start_sum(device, act.middle).wait();
  middle_forward(device, batch, x, act, work);
}

template class DecoderLayer<double>;
template class DecoderLayer<float>;
template class DecoderLayer<bf16>;

}  // namespace nanotron::model
