// The loss of a transformer with appended layers. They run after the last layer, between its forward and its backward:
// their activations are stored once, whatever the number of micro-batches in flight.

#include "appended_layers.hpp"
#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::model {

template <class T>
void Transformer<T>::set_later_tokens(const LaterTokens& tokens) {
  if (appended_) appended_->set(tokens);
}

template <class T>
index_t Transformer<T>::steps_after_loss() const {
  return appended_ ? appended_->size() + 1 : 0;
}

template <class T>
index_t Transformer<T>::source_after_loss(index_t step) const {
  return loss_source(appended_->size() - step);
}

// The virtual stage of the appended layer of this depth.
template <class T>
index_t Transformer<T>::appended_stage(index_t depth) const {
  return static_cast<index_t>(setup_.stages.size()) - appended_->size() + depth - 1;
}

template <class T>
index_t Transformer<T>::loss_steps() const {
  return appended_ ? appended_->size() + 2 : 1;
}

template <class T>
index_t Transformer<T>::loss_source(index_t step) const {
  if (step == 0) return table_.appended_embedding_source();
  return step <= appended_->size() ? source_of(appended_stage(step), 0) : table_.head_source();
}

template <class T>
SourceUse Transformer<T>::loss_use(index_t stage, index_t step) const {
  if (!appended_) return head_use(stage);
  const index_t depths = appended_->size();
  return {loss_source(step), loss_source(step <= depths ? step + 1 : depths)};
}

template <class T>
SourceUse Transformer<T>::use_after_loss(index_t stage, index_t step) const {
  const index_t d = appended_->size() - step;
  return {loss_source(d), d > 1 ? loss_source(d - 1) : source_of(stage, layers(stage) - 1)};
}

// Of a micro-batch. The last appended layer runs just before its backward: nothing of it has to be recomputed.
template <class T>
comm::StepTraffic Transformer<T>::appended_traffic() const {
  comm::StepTraffic sum;
  const index_t depths = appended_ ? appended_->size() : 0;
  for (index_t d = 1; d <= depths; ++d) {
    const LayerTraffic layer = layer_of(appended_stage(d), 0).traffic();
    sum += layer.forward + layer.backward;
    const bool is_full = recompute_of(appended_stage(d), 0) == deck::Recompute::full;
    if (!is_full || d < depths) sum += is_full ? layer.recompute : layer.again;
    sum += tp_region_->sum_traffic() + tp_region_->gather_traffic() + head_->loss.traffic(tokens()) +
           tp_region_->sum_traffic() + tp_region_->gather_traffic();
  }
  return sum;
}

template <class T>
void Transformer<T>::loss_of_all(const Slot& slot, Vector<const std::int32_t> targets, double scale,
                                 const nn::LossRows& rows) {
  weights_.use(loss_use(slot.stage, 0));
  appended_->embed(*device_);
  normalise_output(slot);
  Matrix<T> normed = act_.final_norm;
  for (index_t d = 1; d <= appended_->size(); ++d) {
    const index_t stage = appended_stage(d);
    const NotedLayer noted(setup_.stages[static_cast<std::size_t>(stage)].layers.begin);
    use_weights(stage, 0, loss_use(slot.stage, d));
    const StageActivations<T>& act = at({.stage = stage});
    const Matrix<T> x = act.residual.front(), y = act.residual.back();
    appended_->join(*device_, d, normed, act_.work.dn, x);
    complete(layer_of(stage, 0).forward(*device_, batch(slot), {x}, act.layers.front(), act_.work, y));
    appended_->normalise(*device_, d, y);
    normed = appended_->normed(d);
  }
  weights_.use(loss_use(slot.stage, loss_steps() - 1));
  for (index_t d = 0; d <= appended_->size(); ++d) {
    const Matrix<T> dn = appended_->gradient(d);
    head_->loss.forward_backward(
        *device_, tp_region_->gather(*device_, d == 0 ? act_.final_norm : appended_->normed(d)),
        d == 0 ? targets : appended_->targets(d), d == 0 ? scale : scale * appended_->weight(), act_.loss,
        d == 0 ? rows : appended_->rows(d), tp_region_->partial_sum(dn), appended_->head_gradients());
    tp_region_->start_sum(*device_, dn).wait();
  }
  if (!appended_->is_tied()) head_->loss.add_shards(*device_, appended_->head_gradients());
}

template <class T>
void Transformer<T>::backward_after_loss(const Slot& slot, index_t step, Matrix<T> dx) {
  const Region region(device_->timers(), "backward");
  const Workspace<T>& work = act_.work;
  const index_t depths = appended_->size(), d = depths - step;
  if (d == 0) {
    for (index_t k = 1; k <= depths; ++k)
      appended_->embed_backward(*device_, k, at({.stage = appended_stage(k)}).residual.front());
    if (appended_->is_tied()) {
      head_->loss.add_shards(*device_, appended_->head_gradients());
    } else {
      appended_->add_embedding_shards(*device_);
    }
    kernels::fill<T>(*device_, flat(dx), 0.0);
    head_->norm->backward(*device_, appended_->gradient(0), output(slot), act_.final_statistics, dx, work.sums);
    return;
  }
  const index_t stage = appended_stage(d);
  const NotedLayer noted(setup_.stages[static_cast<std::size_t>(stage)].layers.begin);
  use_weights(stage, 0, use_after_loss(slot.stage, step));
  const StageActivations<T>& act = at({.stage = stage});
  const Matrix<T> x = act.residual.front(), y = act.residual.back();
  appended_->normalise_backward(*device_, d, y, dx, work.sums);
  const DecoderLayer<T>& layer = layer_of(stage, 0);
  const deck::Recompute recompute = d < depths ? recompute_of(stage, 0) : deck::Recompute::none;
  if (recompute == deck::Recompute::selective) layer.recompute_selective(*device_, x, act.layers.front());
  if (recompute == deck::Recompute::full) layer.recompute(*device_, batch(slot), x, act.layers.front(), work, y);
  layer.backward(*device_, batch(slot), x, act.layers.front(), work, dx);
  // x is free: the gradient of the embedding takes its place until the last step.
  appended_->join_backward(*device_, d, d > 1 ? appended_->normed(d - 1) : act_.final_norm, dx, work.dn, x, work.sums);
}

#define NANOTRON_INSTANTIATE(T)                                                                                    \
  template void Transformer<T>::set_later_tokens(const LaterTokens&);                                              \
  template index_t Transformer<T>::steps_after_loss() const;                                                       \
  template index_t Transformer<T>::source_after_loss(index_t) const;                                               \
  template index_t Transformer<T>::loss_steps() const;                                                             \
  template index_t Transformer<T>::loss_source(index_t) const;                                                     \
  template SourceUse Transformer<T>::loss_use(index_t, index_t) const;                                             \
  template SourceUse Transformer<T>::use_after_loss(index_t, index_t) const;                                       \
  template comm::StepTraffic Transformer<T>::appended_traffic() const;                                             \
  template void Transformer<T>::loss_of_all(const Slot&, Vector<const std::int32_t>, double, const nn::LossRows&); \
  template void Transformer<T>::backward_after_loss(const Slot&, index_t, Matrix<T>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model
