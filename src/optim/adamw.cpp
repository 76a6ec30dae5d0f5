#include "nanotron/optim/adamw.hpp"

#include "nanotron/kernels/optim/adamw.hpp"
#include "nanotron/model/parametrization.hpp"

namespace nanotron::optim {

template <class M>
Adamw<M>::Adamw(const deck::OptimizerConfig& config, const model::ParameterTable& table,
                const nn::ParameterLayouts& layouts, Covers over, Arena& arena)
    : config_(config),
      parts_(update_parts(table, layouts)),
      over_(over),
      layout_(layouts.moments),
      exp_avg_(arena.take<M>(MemoryKind::optimizer, layout_.size())),
      exp_avg_sq_(arena.take<M>(MemoryKind::optimizer, layout_.size())) {}

template <class M>
void Adamw<M>::update(Device& device, const UpdatedWeights<M>& weights, Vector<const M> gradient, double learning_rate,
                      double gradient_scale) {
  ++steps_;
  for (const UpdatePart& p : parts_) {
    const double rate = model::adamw_rate(p.fan_in_ratio);
    const kernels::AdamwStep step{.learning_rate = rate * learning_rate,
                                  .beta1 = config_.beta1,
                                  .beta2 = config_.beta2,
                                  .eps = config_.eps,
                                  .weight_decay = p.decays ? config_.weight_decay / rate : 0.0,
                                  .step = steps_,
                                  .gradient_scale = gradient_scale};
    kernels::adamw<M>(device, weights.master_of(p), Vector<const M>(gradient.data() + p.gradient, p.size()),
                      Vector<M>(exp_avg_.data() + p.moments, p.size()),
                      Vector<M>(exp_avg_sq_.data() + p.moments, p.size()), step, weights.copy_of(p));
  }
}

template <class M>
std::vector<Moment<M>> Adamw<M>::moments() const {
  return {{"exp_avg", over_, layout_, exp_avg_}, {"exp_avg_sq", over_, layout_, exp_avg_sq_}};
}

template class Adamw<double>;
template class Adamw<float>;

}  // namespace nanotron::optim
