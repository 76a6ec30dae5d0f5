#include "nanotron/optim/weight_average.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/chunk.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/kernels/optim/update_operands.hpp"

namespace nanotron::optim {

template <class M>
void update_average(Device& device, Vector<M> average, Vector<const M> p, double decay,
                    Vector<const kernels::UpdateScalars> scalars, deck::StateMemory memory) {
  const KernelRegion kernel(device, "weight average",
                            kernels::with_states({.read = bytes_of(p)}, bytes_of(average), memory));
  NANOTRON_REQUIRE(average.extent(0) == p.extent(0), "weight average: {} values, {} parameters", average.extent(0),
                   p.extent(0));
  const M share = static_cast<M>(1.0 - decay);
  M* const mean = average.data();
  const M* const parameter = p.data();
  const kernels::UpdateScalars* const decided = scalars.data();
  kernels::for_each_piece<M>(
      device, "weight average", static_cast<index_t>(p.extent(0)),
      KOKKOS_LAMBDA(const kernels::Row& row, const index_t begin, const index_t count) {
        if (!decided->updates) return;
        row.template for_each_chunk<M>(count, [=](const index_t at, const auto n) {
          const index_t i = begin + at;
          const auto x = kernels::load(parameter + i, n), m = kernels::load(mean + i, n);
          kernels::store(mean + i, n, [&](const int k) { return m[k] + share * (x[k] - m[k]); });
        });
      });
}

template <class M>
WeightAverage<M>::WeightAverage(const deck::OptimizerConfig& config, const model::ParameterTable& table,
                                const nn::ParameterLayouts& layouts, Arena& arena)
    : decay_(config.ema_decay), memory_(config.state_memory) {
  if (decay_ == 0.0) return;
  parts_ = update_parts(table, layouts);
  layout_ = layouts.moments;
  values_ = arena.take<M>(memory_of_states(config), layout_.size());
}

template <class M>
void WeightAverage<M>::begin(const model::ParameterTable& table, std::int64_t seed) {
  if (decay_ > 0.0) model::initialise<M>(table, seed, values_, layout_);
}

template <class M>
void WeightAverage<M>::update(Device& device, Vector<const M> master, Vector<const kernels::UpdateScalars> scalars) {
  for (const UpdatePart& part : parts_) {
    update_average<M>(device, Vector<M>(values_.data() + part.moments, part.size()),
                      Vector<const M>(master.data() + part.parameters, part.size()), decay_, scalars, memory_);
  }
}

template <class M>
std::vector<Moment<M>> WeightAverage<M>::states() const {
  if (decay_ == 0.0) return {};
  Moment<M> average{"ema", Covers::all, layout_, values_};
  average.or_weights = true;
  return {average};
}

#define NANOTRON_INSTANTIATE(M)                                                                                      \
  template void update_average<M>(Device&, Vector<M>, Vector<const M>, double, Vector<const kernels::UpdateScalars>, \
                                  deck::StateMemory);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
NANOTRON_INSTANTIATE_MASTER_CLASS(WeightAverage)

}  // namespace nanotron::optim
