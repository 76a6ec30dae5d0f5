#include "nanotron/optim/weight_average.hpp"

#include "nanotron/kernels/optim/weight_average.hpp"

namespace nanotron::optim {

template <class M>
WeightAverage<M>::WeightAverage(const deck::OptimizerConfig& config, const model::ParameterTable& table,
                                const nn::ParameterLayouts& layouts, Arena& arena)
    : decay_(config.ema_decay) {
  if (decay_ == 0.0) return;
  parts_ = update_parts(table, layouts);
  layout_ = layouts.moments;
  values_ = arena.take<M>(MemoryKind::optimizer, layout_.size());
}

template <class M>
void WeightAverage<M>::begin(const model::ParameterTable& table, std::int64_t seed) {
  if (decay_ > 0.0) model::initialise<M>(table, seed, values_, layout_);
}

template <class M>
void WeightAverage<M>::update(Device& device, Vector<const M> master, Vector<const kernels::UpdateScalars> scalars) {
  for (const UpdatePart& part : parts_) {
    kernels::weight_average<M>(device, Vector<M>(values_.data() + part.moments, part.size()),
                               Vector<const M>(master.data() + part.parameters, part.size()), decay_, scalars);
  }
}

template <class M>
std::vector<Moment<M>> WeightAverage<M>::states() const {
  if (decay_ == 0.0) return {};
  return {{.name = "ema", .over = Covers::all, .layout = layout_, .values = values_, .or_weights = true}};
}

NANOTRON_INSTANTIATE_MASTER_CLASS(WeightAverage)

}  // namespace nanotron::optim
