#include "nanotron/parallel/gradient_sum.hpp"

#include "nanotron/parallel/adasum.hpp"
#include "nanotron/parallel/data_parallel.hpp"
#include "nanotron/parallel/ordered_sum.hpp"
#include "nanotron/parallel/power_sgd.hpp"
#include "nanotron/parallel/scaled_sum.hpp"
#include "nanotron/parallel/zero.hpp"

namespace nanotron::parallel {

UnitCount::UnitCount(const model::ParameterTable& table, index_t micro_batches) : added_(table.units.size(), 0) {
  for (const model::Unit& unit : table.units) wanted_.push_back(micro_batches * unit.uses);
}

bool UnitCount::add(index_t unit) {
  const auto u = static_cast<std::size_t>(unit);
  if (++added_[u] < wanted_[u]) return false;
  added_[u] = 0;
  return true;
}

template <class T>
std::unique_ptr<GradientSum<T>> make_gradient_sum(const model::Sharding& sharding, model::Transformer<T>& model,
                                                  const SumMemory<master_t<T>>& memory, const ReplicaGroups& groups,
                                                  Device& device, const SumRule& rule) {
  if (sharding.gradients != model::UnitGradients::by_stage) {
    return std::make_unique<OrderedSum<T>>(model, sharding, memory.ordered, groups, device, rule);
  }
  if (sharding.size > 1 && sharding.stage == 1) {
    return std::make_unique<ShardedInPlace<T>>(model, sharding, groups, device, rule);
  }
  if (sharding.size > 1) return std::make_unique<ShardedByUnit<T>>(model, sharding, groups, device, rule);
  if (groups.replicas.size() > 1 && rule.rule == deck::GradientRule::adasum) {
    return std::make_unique<Adasum<T>>(model, memory.adasum, groups.replicas, device, rule);
  }
  if (groups.replicas.size() > 1 && rule.compression == deck::Compression::bf16) {
    return std::make_unique<RoundedSum<T>>(model, groups.replicas, device, rule, memory.rounded);
  }
  if (groups.replicas.size() > 1 && rule.compression == deck::Compression::fp16) {
    return std::make_unique<ScaledSum<T>>(model, groups.replicas, device, rule, memory.half, memory.largest);
  }
  if (groups.replicas.size() > 1 && rule.compression == deck::Compression::powersgd) {
    return std::make_unique<PowerSgd<T>>(model, memory, groups.replicas, device, rule);
  }
  return std::make_unique<DataParallel<T>>(model, groups.replicas, device, rule);
}

#define NANOTRON_INSTANTIATE(T)                                                                              \
  template std::unique_ptr<GradientSum<T>> make_gradient_sum(const model::Sharding&, model::Transformer<T>&, \
                                                             const SumMemory<master_t<T>>&,                  \
                                                             const ReplicaGroups&, Device&, const SumRule&);
NANOTRON_INSTANTIATE(double)
NANOTRON_INSTANTIATE(float)
NANOTRON_INSTANTIATE(bf16)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::parallel
