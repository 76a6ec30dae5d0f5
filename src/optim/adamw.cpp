#include "optim/optimizers.hpp"

#include "nanotron/base/types.hpp"
#include "nanotron/model/parameters/parametrization.hpp"

namespace nanotron::optim {

kernels::AdamwStep adamw_step(const deck::OptimizerConfig& config, const UpdatePart& part, std::int64_t steps,
                              double learning_rate) {
  const double factor = model::adamw_rate_factor(part.fan_in_ratio);
  return {.learning_rate = factor * learning_rate,
          .beta1 = config.beta1,
          .beta2 = config.beta2,
          .eps = config.eps,
          .weight_decay = part.decays ? config.weight_decay / factor : 0.0,
          .step = steps};
}

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
                      Vector<const kernels::UpdateScalars> scalars) {
  for (const UpdatePart& p : parts_) {
    kernels::adamw<M>(device, weights.master_of(p), Vector<const M>(gradient.data() + p.gradient, p.size()),
                      Vector<M>(exp_avg_.data() + p.moments, p.size()),
                      Vector<M>(exp_avg_sq_.data() + p.moments, p.size()),
                      adamw_step(config_, p, steps_ + 1, learning_rate), scalars, weights.copy_of(p));
  }
}

template <class M>
std::vector<Moment<M>> Adamw<M>::moments() const {
  return {{"exp_avg", over_, layout_, exp_avg_}, {"exp_avg_sq", over_, layout_, exp_avg_sq_}};
}

NANOTRON_INSTANTIATE_MASTER_CLASS(Adamw)

}  // namespace nanotron::optim
