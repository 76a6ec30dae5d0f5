#include "nanotron/parallel/gradient_sum.hpp"

#include "nanotron/parallel/data_parallel.hpp"
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
                                                  const ReplicaGroups& groups, Device& device, const SumRule& rule) {
  if (sharding.size == 1) return std::make_unique<DataParallel<T>>(model, groups.replicas, device, rule);
  if (sharding.stage == 1) return std::make_unique<ShardedInPlace<T>>(model, sharding, groups, device, rule);
  return std::make_unique<ShardedByUnit<T>>(model, sharding, groups, device, rule);
}

template std::unique_ptr<GradientSum<double>> make_gradient_sum(const model::Sharding&, model::Transformer<double>&,
                                                                const ReplicaGroups&, Device&, const SumRule&);
template std::unique_ptr<GradientSum<float>> make_gradient_sum(const model::Sharding&, model::Transformer<float>&,
                                                               const ReplicaGroups&, Device&, const SumRule&);
template std::unique_ptr<GradientSum<bf16>> make_gradient_sum(const model::Sharding&, model::Transformer<bf16>&,
                                                              const ReplicaGroups&, Device&, const SumRule&);

}  // namespace nanotron::parallel
