#include "nanotron/model/layers/halves_in_turns.hpp"

#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/base/types.hpp"

namespace nanotron::model {
namespace {

constexpr index_t a = 0, b = 1;

template <class P>
auto& of(P& passes, index_t half) {
  return passes[static_cast<std::size_t>(half)];
}

}  // namespace

template <class T>
Matrix<T> HalvesInTurns<T>::rows_of(const Matrix<T>& both, index_t half) {
  const auto rows = static_cast<index_t>(both.extent(0)) / halves, columns = static_cast<index_t>(both.extent(1));
  return Matrix<T>(both.data() == nullptr ? nullptr : both.data() + half * rows * columns, rows, columns);
}

template <class T>
LayerPass<T> HalvesInTurns<T>::pass_of(const Slot& pair, index_t layer, index_t half) const {
  const Slot slot = half_of(pair, half);
  const StageActivations<T>& act = model_->at(slot);
  const auto l = static_cast<std::size_t>(layer);
  return {.batch = &model_->batch(slot),
          .x = {act.residual[l]},
          .act = &act.layers[l],
          .work = &model_->act_.work_of(slot),
          .x_out = act.residual[l + 1]};
}

// Without a gather of the next one, whose place may be that of a layer still in use.
template <class T>
void HalvesInTurns<T>::use_weights(const Slot& pair, index_t layer) const {
  model_->use_weights(pair.stage, layer, {model_->source_of(pair.stage, layer)});
}

template <class T>
void HalvesInTurns<T>::forward(const Slot& pair) {
  Device& device = *model_->device_;
  const Region region(device.timers(), "forward");
  index_t in_flight = no_unit;  // the layer whose outputs are
  std::array<nn::HiddenStates<T>, halves> x{};
  const auto arrive = [&](index_t half) {
    if (in_flight != no_unit)
      of(x, half) = model_->layer_of(pair.stage, in_flight).finish_output(device, of(passes_, half));
  };
  for (index_t half = 0; half < halves; ++half) of(x, half) = {model_->input(half_of(pair, half))};
  for (index_t l = 0; l < model_->layers(pair.stage); ++l) {
    const NotedLayer noted(model_->setup_.stages[static_cast<std::size_t>(pair.stage)].layers.begin + l);
    const DecoderLayer<T>& layer = model_->layer_of(pair.stage, l);
    const auto enter = [&](index_t half) {
      arrive(half);
      of(passes_, half) = pass_of(pair, l, half);
      of(passes_, half).x = of(x, half);
    };
    use_weights(pair, l);
    enter(a);
    if (!layer.has_steps()) {
      enter(b);
      in_flight = no_unit;
      model_->weights_.use(model_->forward_use(pair.stage, l));
      for (index_t half = 0; half < halves; ++half) {
        const LayerPass<T>& p = of(passes_, half);
        of(x, half) = layer.forward(device, *p.batch, p.x, *p.act, *p.work, p.x_out);
      }
      continue;
    }
    layer.forward_attention(device, of(passes_, a));
    layer.forward_route(device, of(passes_, a));
    enter(b);
    model_->weights_.use(model_->forward_use(pair.stage, l));
    in_flight = l;
    route_and_compute(layer);
    layer.start_output(device, of(passes_, b));
  }
  for (index_t half = 0; half < halves; ++half) {
    arrive(half);
    model_->complete(of(x, half));
  }
}

// NCCL launches the collectives of all communicators in the order of the host's calls (NCCL 2.30, enqueue.cc,
// getImplicitOrder): where attention has collectives the dispatch comes before them, else after the attention, whose
// kernels then hide the host's wait for the counts.
template <class T>
void HalvesInTurns<T>::attend_beside_dispatch(const DecoderLayer<T>& layer) {
  Device& device = *model_->device_;
  const bool is_alone = model_->setup_.tp->size() == 1 && model_->setup_.cp->size() == 1;
  if (!is_alone) layer.forward_dispatch(device, of(passes_, a));
  layer.forward_attention(device, of(passes_, b));
  if (is_alone) layer.forward_dispatch(device, of(passes_, a));
}

// After the attention and the route of half 0: all before the output of half 1 is sent back.
template <class T>
void HalvesInTurns<T>::route_and_compute(const DecoderLayer<T>& layer) {
  Device& device = *model_->device_;
  attend_beside_dispatch(layer);
  layer.forward_route(device, of(passes_, b));
  layer.forward_rows(device, of(passes_, a));
  layer.forward_dispatch(device, of(passes_, b));
  layer.start_output(device, of(passes_, a));
  layer.forward_rows(device, of(passes_, b));
}

template <class T>
void HalvesInTurns<T>::recompute(const Slot& pair, index_t l) {
  Device& device = *model_->device_;
  const DecoderLayer<T>& layer = model_->layer_of(pair.stage, l);
  for (index_t half = 0; half < halves; ++half) of(passes_, half) = pass_of(pair, l, half);
  layer.forward_attention(device, of(passes_, a));
  layer.forward_route(device, of(passes_, a));
  attend_beside_dispatch(layer);
  layer.forward_route(device, of(passes_, b));
  layer.forward_rows(device, of(passes_, a));
  layer.forward_dispatch(device, of(passes_, b));
  layer.forward_rows(device, of(passes_, b));
}

template <class T>
void HalvesInTurns<T>::start(const Slot& pair, index_t l, index_t half, Matrix<T> dx) {
  const DecoderLayer<T>& layer = model_->layer_of(pair.stage, l);
  LayerPass<T>& pass = of(passes_, half) = pass_of(pair, l, half);
  if (model_->recompute_of(pair.stage, l) == deck::Recompute::selective)
    layer.recompute_selective(*model_->device_, pass.x.x, *pass.act);
  layer.backward_start(*model_->device_, pass, rows_of(dx, half));
}

// A norm after the experts would add to its gradient when half 1 starts, which is before half 0 ends.
template <class T>
bool HalvesInTurns<T>::has_steps_back(const Slot& pair, index_t l) const {
  const DecoderLayer<T>& layer = model_->layer_of(pair.stage, l);
  return layer.has_steps() && !layer.recomputes_output();
}

// Whether half 0 may start its backward while half 1 is in the layer after it: both need not be recomputed first.
template <class T>
bool HalvesInTurns<T>::starts_early(const Slot& pair, index_t l) const {
  return l >= 0 && has_steps_back(pair, l) && model_->recompute_of(pair.stage, l) != deck::Recompute::full;
}

template <class T>
void HalvesInTurns<T>::backward(const Slot& pair, index_t l, index_t half, Matrix<T> dx, Backward parts) {
  Device& device = *model_->device_;
  const DecoderLayer<T>& layer = model_->layer_of(pair.stage, l);
  if (!has_steps_back(pair, l)) {
    const Slot slot = half_of(pair, half);
    const Matrix<T> rows = rows_of(dx, half);
    return parts == Backward::whole ? model_->backward_layer(slot, l, rows)
                                    : model_->backward_layer_input(slot, l, rows);
  }
  const Region region(device.timers(), "backward");
  const NotedLayer noted(model_->setup_.stages[static_cast<std::size_t>(pair.stage)].layers.begin + l);
  if (half == b) {
    use_weights(pair, l);
    return finish(pair, l, b, dx, parts);
  }
  model_->use_weights(pair.stage, l, model_->backward_use(pair.stage, l));
  if (model_->recompute_of(pair.stage, l) == deck::Recompute::full) recompute(pair, l);
  if (started_ != l) start(pair, l, a, dx);
  start(pair, l, b, dx);
  started_ = no_unit;
  layer.backward_rows(device, of(passes_, a));
  if (parts == Backward::whole) layer.backward_rows_weight(device, of(passes_, a));
  layer.backward_rows(device, of(passes_, b));
  finish(pair, l, a, dx, parts);
}

template <class T>
void HalvesInTurns<T>::finish(const Slot& pair, index_t l, index_t half, Matrix<T> dx, Backward parts) {
  Device& device = *model_->device_;
  const DecoderLayer<T>& layer = model_->layer_of(pair.stage, l);
  const LayerPass<T>& pass = of(passes_, half);
  if (parts == Backward::two_parts) {
    layer.backward_input_finish(device, pass, rows_of(dx, half));
  } else {
    if (half == b) layer.backward_rows_weight(device, pass);
    layer.backward_finish(device, pass, rows_of(dx, half));
  }
  if (half == b || !starts_early(pair, l - 1)) return;
  use_weights(pair, l - 1);
  start(pair, l - 1, a, dx);
  started_ = l - 1;
}

NANOTRON_INSTANTIATE_CLASS(HalvesInTurns)

}  // namespace nanotron::model
