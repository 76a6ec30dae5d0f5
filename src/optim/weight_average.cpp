#include "nanotron/optim/weight_average.hpp"

#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/chunk.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/kernels/optim/update_operands.hpp"
#include "optim/host_states/host_states.hpp"
#include "optim/host_states/source_order.hpp"

namespace nanotron::optim {

template <class M>
void update_average(Device& device, Vector<M> average, Vector<const M> p, double decay,
                    Vector<const kernels::UpdateScalars> scalars) {
  const KernelRegion kernel(device, "weight average", reads(p, average), writes(average));
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
struct WeightAverage<M>::Update {
  Update(std::vector<NoisyPart> of, const Vector<M>& values, deck::StateMemory memory, std::size_t bucket, Arena& arena)
      : parts(std::move(of)), states({values}, memory, elements_of(parts), bucket, arena), queued(parts.size()) {}

  std::vector<NoisyPart> parts;
  StatesOfUpdate<M> states;
  std::size_t queued;  // of the parts
  Vector<const M> master{};
  Vector<const kernels::UpdateScalars> scalars{};
};

template <class M>
WeightAverage<M>::WeightAverage(const deck::OptimizerConfig& config, const model::ParameterTable& table,
                                const nn::ParameterLayouts& layouts, Arena& arena, std::size_t host_bucket)
    : decay_(config.ema_decay) {
  if (decay_ == 0.0) return;
  std::vector<NoisyPart> parts;
  for (const UpdatePart& part : update_parts(table, layouts)) parts.push_back({part});
  if (config.state_memory == deck::StateMemory::host) parts = by_source(parts, table);
  layout_ = layouts.moments;
  values_ = arena.take<M>(memory_of_states(config), layout_.size());
  update_ = std::make_unique<Update>(std::move(parts), values_, config.state_memory, host_bucket, arena);
}

template <class M>
WeightAverage<M>::~WeightAverage() = default;
template <class M>
WeightAverage<M>::WeightAverage(WeightAverage&&) noexcept = default;

template <class M>
void WeightAverage<M>::begin(const model::ParameterTable& table, std::int64_t seed) {
  if (decay_ > 0.0) model::initialise<M>(table, seed, values_, layout_);
}

template <class M>
void WeightAverage<M>::update(Device& device, Vector<const M> master, Vector<const kernels::UpdateScalars> scalars) {
  if (!update_) return;
  NANOTRON_REQUIRE(update_->queued == update_->parts.size(), "{} of {} parts of the last average are queued",
                   update_->queued, update_->parts.size());
  update_->master = master, update_->scalars = scalars;
  update_->queued = 0;
  update_->states.begin(device);
  continue_update(device, model::no_unit);
}

template <class M>
void WeightAverage<M>::continue_update(Device& device, index_t source) {
  if (!update_) return;
  Update& u = *update_;
  for (; u.queued < u.parts.size() && u.parts[u.queued].source <= source; ++u.queued) {
    const NoisyPart& part = u.parts[u.queued];
    u.states.for_each_part(device, part.moments(), [&](const Range& moments, const auto& states) {
      const M* const p = u.master.data() + part.part.parameters + (moments.begin - part.part.moments);
      update_average<M>(device, std::get<Vector<M>>(states.front()), Vector<const M>(p, moments.size()), decay_,
                        u.scalars);
    });
  }
  u.states.store(device);
}

template <class M>
void WeightAverage<M>::finish_update(Device& device) {
  if (update_) update_->states.finish(device);
}

template <class M>
std::vector<Moment<M>> WeightAverage<M>::states() const {
  if (decay_ == 0.0) return {};
  Moment<M> average{"ema", Covers::all, layout_, values_};
  average.or_weights = true;
  return {average};
}

#define NANOTRON_INSTANTIATE(M) \
  template void update_average<M>(Device&, Vector<M>, Vector<const M>, double, Vector<const kernels::UpdateScalars>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
NANOTRON_INSTANTIATE_MASTER_CLASS(WeightAverage)

}  // namespace nanotron::optim
