#include "nanotron/parallel/reducers/gradient_sum.hpp"

#include "nanotron/kernels/reduction/scaled_half.hpp"
#include "nanotron/parallel/reducers/adasum.hpp"
#include "nanotron/parallel/reducers/data_parallel.hpp"
#include "nanotron/parallel/reducers/ordered_sum.hpp"
#include "nanotron/parallel/reducers/power_sgd.hpp"
#include "nanotron/parallel/reducers/scaled_sum.hpp"
#include "nanotron/parallel/zero/zero.hpp"

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

namespace {

template <class T>
std::unique_ptr<GradientSum<T>> make_section_sum(const model::Section& section, const model::Sharding& sharding,
                                                 model::Transformer<T>& model, const SumMemory<master_t<T>>& memory,
                                                 const ReplicaGroups& groups, Device& device, const SumRule& rule) {
  if (sharding.gradients != model::UnitGradients::by_stage) {
    return std::make_unique<OrderedSum<T>>(model, section, sharding, memory.ordered, groups, device, rule);
  }
  if (sharding.size > 1 && sharding.stage == 1) {
    return std::make_unique<ShardedInPlace<T>>(model, section, sharding, groups, device, rule);
  }
  if (sharding.size > 1) return std::make_unique<ShardedByUnit<T>>(model, section, sharding, groups, device, rule);
  if (groups.replicas.size() > 1 && rule.rule == deck::GradientRule::adasum) {
    return std::make_unique<Adasum<T>>(model, section, memory.adasum, groups.replicas, device, rule);
  }
  if (groups.replicas.size() > 1 && rule.compression == deck::Compression::bf16) {
    const Vector<bf16> rounded(memory.rounded.data() + section.flat.begin, section.flat.size());
    return std::make_unique<RoundedSum<T>>(model, section, groups.replicas, device, rule, rounded);
  }
  if (groups.replicas.size() > 1 && rule.compression == deck::Compression::fp16) {
    const Vector<fp16> half(memory.half.data() + section.flat.begin, section.flat.size());
    const index_t before = kernels::half_blocks(section.flat.begin);
    const Vector<master_t<T>> largest(memory.largest.data() + before, kernels::half_blocks(section.flat.size()));
    return std::make_unique<ScaledSum<T>>(model, section, groups.replicas, device, rule, half, largest);
  }
  if (groups.replicas.size() > 1 && rule.compression == deck::Compression::powersgd) {
    return std::make_unique<PowerSgd<T>>(model, section, memory, groups.replicas, device, rule);
  }
  return std::make_unique<DataParallel<T>>(model, section, groups.replicas, device, rule);
}

// Experts are summed over other ranks than the rest of their layer.
template <class T>
class WithExperts final : public GradientSum<T> {
 public:
  WithExperts(const model::ParameterTable& table, std::unique_ptr<GradientSum<T>> dense,
              std::unique_ptr<GradientSum<T>> experts)
      : table_(table), dense_(std::move(dense)), experts_(std::move(experts)) {}

  void begin_step() override {
    dense_->begin_step();
    experts_->begin_step();
  }
  void begin(index_t unit) override {
    dense_->begin(unit);
    if (table_.is_layer(unit)) experts_->begin(table_.expert_unit(unit));
  }
  void end(index_t unit) override {
    dense_->end(unit);
    if (table_.is_layer(unit)) experts_->end(table_.expert_unit(unit));
  }
  void begin_head(index_t unit) override { dense_->begin_head(unit); }
  void end_head(index_t unit) override { dense_->end_head(unit); }
  void end_inputs(index_t unit) override { dense_->end_inputs(unit); }
  void finish() override {
    dense_->finish();
    experts_->finish();
    this->exposed_seconds_ = dense_->exposed_seconds() + experts_->exposed_seconds();
  }
  void forget() override {
    dense_->forget();
    experts_->forget();
  }

 private:
  const model::ParameterTable& table_;
  std::unique_ptr<GradientSum<T>> dense_, experts_;
};

}  // namespace

template <class T>
std::unique_ptr<GradientSum<T>> make_gradient_sum(const model::Sharding& sharding, model::Transformer<T>& model,
                                                  const SumMemory<master_t<T>>& memory, const ReplicaGroups& groups,
                                                  const ReplicaGroups& experts, Device& device, const SumRule& rule) {
  const model::ParameterTable& table = model.table();
  auto dense = make_section_sum<T>(table.dense_section(), sharding, model, memory, groups, device, rule);
  if (!table.has_experts()) return dense;
  // Experts over ranks of one sequence have its gradient between fewer replicas, over ranks of several one of each.
  const int shared_by = groups.replicas.size() / experts.replicas.size();
  SumRule of_experts = rule;
  of_experts.sequences = sharding.expert_gradients;
  of_experts.context = std::max(1, rule.context / shared_by);
  return std::make_unique<WithExperts<T>>(
      table, std::move(dense),
      make_section_sum<T>(table.expert_section(), sharding, model, memory, experts, device, of_experts));
}

#define NANOTRON_INSTANTIATE(T)                                                                              \
  template std::unique_ptr<GradientSum<T>> make_gradient_sum(const model::Sharding&, model::Transformer<T>&, \
                                                             const SumMemory<master_t<T>>&,                  \
                                                             const ReplicaGroups&, const ReplicaGroups&, Device&, \
                                                             const SumRule&);
NANOTRON_INSTANTIATE(double)
NANOTRON_INSTANTIATE(float)
NANOTRON_INSTANTIATE(bf16)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::parallel
