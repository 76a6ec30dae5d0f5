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
  constexpr comm::StepTraffic none{};
  const comm::StepTraffic inputs = tp_region_->regather_traffic() + attention_->regather_traffic(*tp_region_);
  return {.forward = blocks.forward + blocks.output,
          .recompute = blocks.forward + (mlp_join_.reads_output() ? blocks.output : none),
          .backward = blocks.backward + blocks.weights + inputs,
          .backward_input = blocks.backward + (feed_forward_->is_in_tiles() ? tp_region_->regather_traffic() : none),
          .backward_weight = 2 * tp_region_->gather_traffic() + blocks.weights + inputs,
          .again = blocks.again};
}

// The all-gather of a block's input overlaps the computation of dn. The reduction of dn over the tensor-parallel group
// overlaps the GEMM of the input weight's gradient. Messages to and from experts overlap what follows their start.
template <class T>
void LayerBlocks<T>::backward_mlp(Device& device, const nn::TokenBatch& batch, Matrix<const T> dy,
                                  const nn::BlockInput<T>& input, const LayerActivations<T>& act,
                                  const Workspace<T>& work, Matrix<T> dn) const {
  flight_recorder().at_part("mlp");
  LayerPass<T> pass{.batch = &batch, .act = &act, .work = &work};
  pass.dy = feed_forward_->backward_start(device, *work.region, dy, act.feed_forward, work.feed_forward);
  feed_forward_->backward_output_weight(device, pass.dy, act.feed_forward, work.feed_forward);
  feed_forward_->backward_rows(device, act.feed_forward, work.feed_forward);
  feed_forward_->backward_rows_weight(device, act.feed_forward, work.feed_forward);
  finish_mlp(device, pass, input, dn);
}

template <class T>
void LayerBlocks<T>::finish_mlp(Device& device, const LayerPass<T>& p, const nn::BlockInput<T>& input,
                                Matrix<T> dn) const {
  const Workspace<T>& work = *p.work;
  if (feed_forward_->is_in_tiles()) {
    feed_forward_->backward_tiles(device, *work.region, p.dy, input, work.feed_forward, dn, nn::TileGradients::all)
        .wait();
    return;
  }
  nn::PendingGather<T> n = work.region->start_regather(device, input);
  nn::Pending dn_sum = backward_mlp_input(device, p, input, dn);
  feed_forward_->backward_input_weight(device, n.wait(), p.act->feed_forward, work.feed_forward);
  dn_sum.wait();
}

template <class T>
nn::Pending LayerBlocks<T>::backward_mlp_input(Device& device, const LayerPass<T>& p, const nn::BlockInput<T>& input,
                                               Matrix<T> dn) const {
  const nn::FeedForwardWorkspace<T>& work = p.work->feed_forward;
  if (feed_forward_->is_in_tiles())
    return feed_forward_->backward_tiles(device, *p.work->region, p.dy, input, work, dn, nn::TileGradients::of_input);
  return feed_forward_->backward_input(device, *p.batch, *p.work->region, p.act->feed_forward, work, dn);
}

template <class T>
void LayerBlocks<T>::backward_attention(Device& device, const nn::TokenBatch& batch, Matrix<const T> dy,
                                        const nn::BlockInput<T>& input, const LayerActivations<T>& act,
                                        const Workspace<T>& work, Matrix<T> dn) const {
  flight_recorder().at_part("attention");
  attention_->backward_output_weight(
      device, attention_->backward_inside(device, batch, *work.region, dy, act.attention, work.attention),
      act.attention, work.attention);
  nn::PendingGather<T> n = attention_->start_regather(device, *work.region, input, act.attention);
  nn::Pending dn_sum = attention_->backward_input(device, *work.region, act.attention, work.attention, dn);
  attention_->backward_input_weight(device, input, n.wait(), nn::GradientsIn::workspace, act.attention, work.attention);
  dn_sum.wait();
}

template <class T>
void LayerBlocks<T>::backward_mlp_weight(Device& device, Matrix<const T> dy, const nn::BlockInput<T>& n,
                                         const LayerActivations<T>& act, const Workspace<T>& work) const {
  flight_recorder().at_part("mlp");
  if (feed_forward_->is_in_tiles())
    return feed_forward_->backward_tiles_weight(device, *work.region, dy, n, work.feed_forward);
  feed_forward_->backward_output_weight(device, work.region->gather(device, dy), act.feed_forward, work.feed_forward);
  feed_forward_->backward_rows_weight(device, act.feed_forward, work.feed_forward);
  feed_forward_->backward_input_weight(device, work.region->start_regather(device, n).wait(), act.feed_forward,
                                       work.feed_forward);
}

template <class T>
void LayerBlocks<T>::backward_attention_weight(Device& device, Matrix<const T> dy, const nn::BlockInput<T>& n,
                                               const LayerActivations<T>& act, const Workspace<T>& work) const {
  flight_recorder().at_part("attention");
  attention_->backward_output_weight(device, work.region->gather(device, dy), act.attention, work.attention);
  attention_->backward_input_weight(device, n,
                                    attention_->start_regather(device, *work.region, n, act.attention).wait(),
                                    nn::GradientsIn::activations, act.attention, work.attention);
}

template <class T>
void LayerBlocks<T>::forward_route(Device& device, const LayerPass<T>& p) const {
  flight_recorder().at_part("mlp");
  feed_forward_->forward_route(device, *p.batch, *p.work->region, mlp_input(*p.act, p.x.x), p.act->feed_forward,
                               p.work->feed_forward);
}
template <class T>
void LayerBlocks<T>::forward_dispatch(Device& device, const LayerPass<T>& p) const {
  feed_forward_->forward_dispatch(device, p.act->feed_forward, p.work->feed_forward);
}
template <class T>
void LayerBlocks<T>::forward_rows(Device& device, const LayerPass<T>& p) const {
  flight_recorder().at_part("mlp");
  feed_forward_->forward_rows(device, p.act->feed_forward, p.work->feed_forward);
}
template <class T>
void LayerBlocks<T>::start_output(Device& device, const LayerPass<T>& p) const {
  feed_forward_->start_output(device, p.act->feed_forward, p.work->feed_forward);
}

template <class T>
void LayerBlocks<T>::backward_start(Device& device, LayerPass<T>& p, Matrix<T> dx) const {
  flight_recorder().at_part("mlp");
  const Matrix<const T> dy = mlp_join_.backward(device, *p.batch, dx, p.act->mlp_output, p.work->sums);
  p.dy = feed_forward_->backward_start(device, *p.work->region, dy, p.act->feed_forward, p.work->feed_forward);
}
template <class T>
void LayerBlocks<T>::backward_rows(Device& device, const LayerPass<T>& p) const {
  flight_recorder().at_part("mlp");
  feed_forward_->backward_rows(device, p.act->feed_forward, p.work->feed_forward);
}
template <class T>
void LayerBlocks<T>::backward_rows_weight(Device& device, const LayerPass<T>& p) const {
  feed_forward_->backward_output_weight(device, p.dy, p.act->feed_forward, p.work->feed_forward);
  feed_forward_->backward_rows_weight(device, p.act->feed_forward, p.work->feed_forward);
}

NANOTRON_INSTANTIATE_CLASS(Join)
NANOTRON_INSTANTIATE_CLASS(LayerBlocks)

}  // namespace nanotron::model::detail
