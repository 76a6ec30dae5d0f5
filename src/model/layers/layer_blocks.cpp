#include "layer_blocks.hpp"

#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/base/types.hpp"

namespace nanotron::model::detail {

template <class T>
nn::HiddenStates<T> Join<T>::add(Device& device, const nn::TokenBatch& batch, const Matrix<T>& x,
                                 const BlockOutput<T>& out, const Matrix<T>& x_out) const {
  if (norm_) {
    norm_->add_forward(device, out.y, x, x_out, out.statistics);
    return {x_out};
  }
  if (is_apart()) {
    mask_.add(device, batch, multiplier_, out.y, x, x_out);
    return {x_out};
  }
  if (sum_ == ResidualSum::in_gemm) return {x_out};
  return {x_out, x};
}

template <class T>
Matrix<const T> Join<T>::backward(Device& device, const nn::TokenBatch& batch, Matrix<const T> dx,
                                  const BlockOutput<T>& out, const Vector<M>& sums) const {
  if (!is_apart()) return dx;
  if (norm_) {
    norm_->add_backward(device, dx, out.y, out.statistics, sums);
  } else {
    mask_.scale(device, batch, multiplier_, dx, out.y);
  }
  return out.y;
}

// Whole backward gathers the inputs of both blocks again; backward in two parts also gathers the gradients of their
// outputs again. What recompute = 'full' does again ends before the output of the feed-forward network, unless a norm
// of it follows.
template <class T>
LayerTraffic LayerBlocks<T>::traffic() const {
  const nn::PassTraffic blocks = attention_->traffic(*tp_region_) + feed_forward_->traffic(*tp_region_);
  const comm::StepTraffic inputs = tp_region_->regather_traffic() + attention_->regather_traffic(*tp_region_);
  return {.forward = blocks.forward + blocks.output,
          .recompute = blocks.forward + (mlp_join_.reads_output() ? blocks.output : comm::StepTraffic{}),
          .backward = blocks.backward + inputs,
          .backward_input = blocks.backward,
          .backward_weight = 2 * tp_region_->gather_traffic() + inputs};
}

// The all-gather of a block's input overlaps the computation of dn. The reduction of dn over the tensor-parallel group
// overlaps the GEMM of the input weight's gradient. Messages to and from experts overlap what follows their start.
template <class T>
void LayerBlocks<T>::backward_mlp(Device& device, const nn::TokenBatch& batch, Matrix<const T> dy,
                                  const nn::BlockInput<T>& input, const LayerActivations<T>& act,
                                  const Workspace<T>& work, Matrix<T> dn) const {
  flight_recorder().at_part("mlp");
  feed_forward_->backward_output_weight(
      device, feed_forward_->backward_start(device, *tp_region_, dy, act.feed_forward, work.feed_forward),
      act.feed_forward, work.feed_forward);
  feed_forward_->backward_rows(device, act.feed_forward, work.feed_forward);
  feed_forward_->backward_rows_weight(device, act.feed_forward, work.feed_forward);
  nn::PendingGather<T> n = tp_region_->start_regather(device, input);
  nn::Pending dn_sum =
      feed_forward_->backward_input(device, batch, *tp_region_, act.feed_forward, work.feed_forward, dn);
  feed_forward_->backward_input_weight(device, n.wait(), act.feed_forward, work.feed_forward);
  dn_sum.wait();
}

template <class T>
void LayerBlocks<T>::backward_attention(Device& device, const nn::TokenBatch& batch, Matrix<const T> dy,
                                        const nn::BlockInput<T>& input, const LayerActivations<T>& act,
                                        const Workspace<T>& work, Matrix<T> dn) const {
  flight_recorder().at_part("attention");
  attention_->backward_output_weight(
      device, attention_->backward_inside(device, batch, *tp_region_, dy, act.attention, work.attention), act.attention,
      work.attention);
  nn::PendingGather<T> n = attention_->start_regather(device, *tp_region_, input, act.attention);
  nn::Pending dn_sum = attention_->backward_input(device, *tp_region_, act.attention, work.attention, dn);
  attention_->backward_input_weight(device, input, n.wait(), nn::GradientsIn::workspace, act.attention, work.attention);
  dn_sum.wait();
}

template <class T>
void LayerBlocks<T>::backward_mlp_weight(Device& device, Matrix<const T> dy, const nn::BlockInput<T>& n,
                                         const LayerActivations<T>& act, const Workspace<T>& work) const {
  flight_recorder().at_part("mlp");
  feed_forward_->backward_output_weight(device, tp_region_->gather(device, dy), act.feed_forward, work.feed_forward);
  feed_forward_->backward_rows_weight(device, act.feed_forward, work.feed_forward);
  feed_forward_->backward_input_weight(device, tp_region_->start_regather(device, n).wait(), act.feed_forward,
                                       work.feed_forward);
}

template <class T>
void LayerBlocks<T>::backward_attention_weight(Device& device, Matrix<const T> dy, const nn::BlockInput<T>& n,
                                               const LayerActivations<T>& act, const Workspace<T>& work) const {
  flight_recorder().at_part("attention");
  attention_->backward_output_weight(device, tp_region_->gather(device, dy), act.attention, work.attention);
  attention_->backward_input_weight(device, n, attention_->start_regather(device, *tp_region_, n, act.attention).wait(),
                                    nn::GradientsIn::activations, act.attention, work.attention);
}

NANOTRON_INSTANTIATE_CLASS(Join)
NANOTRON_INSTANTIATE_CLASS(LayerBlocks)

}  // namespace nanotron::model::detail
