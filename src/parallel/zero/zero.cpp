#include "nanotron/parallel/zero/zero.hpp"

#include <algorithm>

#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::parallel {
namespace {

// Where the parts of a range lie in their buffer, neighbours there joined.
std::vector<Range> intervals(const nn::Placement& place, const Range& range) {
  std::vector<Range> found;
  for (const nn::Placement::Part& part : place.within(range)) {
    if (found.empty() || found.back().end != part.at) found.push_back({part.at, part.at});
    found.back().end += part.range.size();
  }
  return found;
}

}  // namespace

template <class T>
ShardedSum<T>::ShardedSum(model::Transformer<T>& model, const model::Section& section, const model::Sharding& sharding,
                          const ReplicaGroups& groups, Device& device, const SumRule& rule, index_t micro_batches)
    : model_(&model),
      section_(section),
      sharding_(sharding),
      groups_(groups),
      device_(&device),
      overlap_(rule.overlap),
      count_(model.table(), micro_batches),
      pieces_(intervals(model.parameters().places.reduced, {section.vectors.end, section.flat.end})) {}

template <class T>
void ShardedSum<T>::clear(const nn::Placement& place) {
  for (const nn::Placement::Part& part : place.parts()) {
    const index_t begin = std::max(part.range.begin, section_.flat.begin), end = std::min(part.range.end, section_.flat.end);
    if (begin >= end) continue;
    M* const at = model_->parameters().gradient.data() + part.at + (begin - part.range.begin);
    kernels::fill<M>(*device_, Vector<M>(at, end - begin), 0.0);
  }
}

template <class T>
auto ShardedSum<T>::gradient_of(index_t u) const -> M* {
  const nn::ParameterBuffers<T>& p = model_->parameters();
  return p.gradient.data() + p.places.gradient.at(unit(u).range.begin);
}

template <class T>
comm::Request ShardedSum<T>::start_reduce_scatter(index_t u) const {
  const Range mine = piece_of(unit(u), sharding_);
  M* const whole = gradient_of(u);
  return comm::start_reduce_scatter(groups_.shards, whole, whole + (mine.begin - unit(u).range.begin),
                                    static_cast<std::size_t>(mine.size()), comm::ReduceOp::sum, device_->stream());
}

template <class T>
void ShardedSum<T>::sum_vectors() {
  const Range& vectors = section_.vectors;
  if (vectors.size() == 0) return;
  const nn::ParameterBuffers<T>& p = model_->parameters();
  model_->sum_partial_gradients(vectors);
  comm::all_reduce(groups_.replicas, p.gradient.data() + p.places.reduced.at(vectors.begin),
                   static_cast<std::size_t>(vectors.size()), comm::ReduceOp::sum, device_->stream());
}

template <class T>
void ShardedSum<T>::sum_copies() {
  for (const Range& piece : pieces_) {
    comm::all_reduce(groups_.copies, model_->parameters().gradient.data() + piece.begin,
                     static_cast<std::size_t>(piece.size()), comm::ReduceOp::sum, device_->stream());
  }
}

template <class T>
ShardedInPlace<T>::ShardedInPlace(model::Transformer<T>& model, const model::Section& section,
                                  const model::Sharding& sharding, const ReplicaGroups& groups, Device& device,
                                  const SumRule& rule)
    : ShardedSum<T>(model, section, sharding, groups, device, rule, rule.micro_batches),
      running_(static_cast<std::size_t>(section.units.size())) {}

template <class T>
void ShardedInPlace<T>::begin_step() {
  this->clear(this->model_->parameters().places.gradient);
}

template <class T>
void ShardedInPlace<T>::start(index_t unit) {
  running_[started_++] = this->start_reduce_scatter(unit);
}

template <class T>
void ShardedInPlace<T>::end(index_t unit) {
  if (!this->count_.add(unit)) return;
  this->model_->sum_partial_gradients(this->unit(unit).range);
  const Region region(this->device_->timers(), "gradient sum, overlapped");
  if (this->overlap_) start(unit);
  while (done_ < started_ && running_[done_].test()) ++done_;
}

template <class T>
void ShardedInPlace<T>::finish() {
  const Region region(this->device_->timers(), "gradient sum, exposed");
  const double begin = wall_seconds();
  if (!this->overlap_) {
    for (index_t u = this->section_.units.end - 1; u >= this->section_.units.begin; --u) start(u);
  }
  while (done_ < started_) running_[done_++].wait();
  started_ = done_ = 0;
  this->sum_vectors();
  this->sum_copies();
  this->exposed_seconds_ += wall_seconds() - begin;
}

template <class T>
ShardedByUnit<T>::ShardedByUnit(model::Transformer<T>& model, const model::Section& section,
                                const model::Sharding& sharding, const ReplicaGroups& groups, Device& device,
                                const SumRule& rule)
    : ShardedSum<T>(model, section, sharding, groups, device, rule, 1) {
  flights_.reserve(model::unit_slots);
}

template <class T>
void ShardedByUnit<T>::begin_step() {
  this->clear(this->model_->parameters().places.reduced);
}

template <class T>
void ShardedByUnit<T>::begin(index_t unit) {
  if (!this->count_.is_fresh(unit)) return;
  const model::ParameterTable& table = this->model_->table();
  const auto in_slot = [&](const Flight& f) { return slot_of(table, f.unit) == slot_of(table, unit); };
  while (std::ranges::any_of(flights_, in_slot)) land_first();
  kernels::fill<M>(*this->device_, Vector<M>(this->gradient_of(unit), this->unit(unit).range.size()), 0.0);
}

template <class T>
void ShardedByUnit<T>::end(index_t unit) {
  if (!this->count_.add(unit)) return;
  this->model_->sum_partial_gradients(this->unit(unit).range);
  {
    const Region region(this->device_->timers(), "gradient sum, overlapped");
    flights_.push_back({unit, this->start_reduce_scatter(unit)});
  }
  if (!this->overlap_) land_first();
}

template <class T>
void ShardedByUnit<T>::land_first() {
  const Region region(this->device_->timers(), "gradient sum, exposed");
  const double begin = wall_seconds();
  flights_.front().request.wait();
  const model::Unit& unit = this->unit(flights_.front().unit);
  const Range mine = piece_of(unit, this->sharding_);
  const nn::ParameterBuffers<T>& p = this->model_->parameters();
  const M* const sum = this->gradient_of(flights_.front().unit) + (mine.begin - unit.range.begin);
  kernels::add<M>(*this->device_, Vector<const M>(sum, mine.size()),
                  Vector<M>(p.gradient.data() + p.places.reduced.at(mine.begin), mine.size()));
  flights_.erase(flights_.begin());
  this->exposed_seconds_ += wall_seconds() - begin;
}

template <class T>
void ShardedByUnit<T>::finish() {
  while (!flights_.empty()) land_first();
  const Region region(this->device_->timers(), "gradient sum, exposed");
  const double begin = wall_seconds();
  this->sum_vectors();
  this->sum_copies();
  this->exposed_seconds_ += wall_seconds() - begin;
}

#define NANOTRON_INSTANTIATE(T)      \
  template class ShardedSum<T>;      \
  template class ShardedInPlace<T>;  \
  template class ShardedByUnit<T>;
NANOTRON_INSTANTIATE(double)
NANOTRON_INSTANTIATE(float)
NANOTRON_INSTANTIATE(bf16)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::parallel
