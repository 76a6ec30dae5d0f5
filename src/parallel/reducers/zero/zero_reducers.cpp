#include "zero_reducers.hpp"

#include <algorithm>

#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::parallel {
namespace {

// The intervals of the buffer that store `range`, adjacent ones merged.
std::vector<Range> intervals(const nn::BufferLayout& place, const Range& range) {
  std::vector<Range> found;
  for (const nn::BufferLayout::Part& part : place.within(range)) {
    if (found.empty() || found.back().end != part.at) found.push_back({part.at, part.at});
    found.back().end += part.range.size();
  }
  return found;
}

}  // namespace

template <class T>
ZeroReducer<T>::ZeroReducer(const ReducerContext<T>& c, index_t micro_batches_of_unit)
    : GradientReducer<T>(c, {.micro_batches = micro_batches_of_unit}),
      shards_(intervals(c.model.parameters().layouts.reduced, {c.section.params_1d.end, c.section.flat.end})) {}

template <class T>
auto ZeroReducer<T>::gradient_of(index_t unit) const -> M* {
  const nn::ParameterBuffers<T>& p = this->model().parameters();
  return p.gradient.data() + p.layouts.gradient.at(this->unit(unit).range.begin);
}

template <class T>
comm::Request ZeroReducer<T>::start_reduce_scatter(index_t u) const {
  const model::Unit& unit = this->unit(u);
  const Range mine = shard_of(unit, this->sharding());
  M* const whole = gradient_of(u);
  return comm::start_reduce_scatter(this->groups().shard, whole, whole + (mine.begin - unit.range.begin),
                                    static_cast<std::size_t>(mine.size()), comm::ReduceOp::sum,
                                    this->device().stream());
}

template <class T>
void ZeroReducer<T>::reduce_1d() {
  const Range& params_1d = this->section().params_1d;
  if (params_1d.size() == 0) return;
  const nn::ParameterBuffers<T>& p = this->model().parameters();
  comm::all_reduce(this->data(), p.gradient.data() + p.layouts.reduced.at(params_1d.begin),
                   static_cast<std::size_t>(params_1d.size()), comm::ReduceOp::sum, this->device().stream());
}

template <class T>
void ZeroReducer<T>::reduce_over_replicates() {
  for (const Range& shard : shards_) {
    comm::all_reduce(this->groups().replicate, this->model().parameters().gradient.data() + shard.begin,
                     static_cast<std::size_t>(shard.size()), comm::ReduceOp::sum, this->device().stream());
  }
}

template <class T>
comm::StepTraffic ZeroReducer<T>::zero_traffic(index_t times) const {
  const model::Section& s = this->section();
  const comm::DataGroups& g = this->groups();
  const auto master = static_cast<index_t>(sizeof(M));
  const index_t params_1d = master * s.params_1d.size(), params_2d = master * s.flat.size() - params_1d;
  return {.data_parallel = comm::all_reduce_bytes(params_1d, g.data.size()) +
                           comm::all_reduce_bytes(params_2d / g.shard.size(), g.replicate.size()) +
                           times * comm::reduce_scatter_bytes(params_2d, g.shard.size())};
}

template <class T>
Zero1Reducer<T>::Zero1Reducer(const ReducerContext<T>& c)
    : ZeroReducer<T>(c, ReduceWhen::all_of_step), running_(static_cast<std::size_t>(c.section.units.size())) {}

template <class T>
void Zero1Reducer<T>::start_step() {
  this->clear(this->model().parameters().layouts.gradient);
}

template <class T>
void Zero1Reducer<T>::completed(index_t unit) {
  const Region region(this->device().timers(), "gradient reduction, overlapped");
  if (this->overlap()) start(unit);
  while (done_ < started_ && running_[done_].test()) ++done_;
}

template <class T>
void Zero1Reducer<T>::finish_step() {
  const typename GradientReducer<T>::Exposed exposed(*this);
  const Range& units = this->section().units;
  if (!this->overlap()) {
    for (index_t u = units.end - 1; u >= units.begin; --u) start(u);
  }
  while (done_ < started_) running_[done_++].wait();
  started_ = done_ = 0;
  this->reduce_1d();
  this->reduce_over_replicates();
}

template <class T>
Zero23Reducer<T>::Zero23Reducer(const ReducerContext<T>& c) : ZeroReducer<T>(c, 1) {
  pending_.reserve(model::unit_slots);
}

template <class T>
void Zero23Reducer<T>::start_step() {
  this->clear(this->model().parameters().layouts.reduced);
}

template <class T>
void Zero23Reducer<T>::before_first_use(index_t unit) {
  const model::ParameterTable& table = this->table();
  const auto in_slot = [&](const PendingReduction& f) { return slot_of(table, f.unit) == slot_of(table, unit); };
  while (std::ranges::any_of(pending_, in_slot)) finish_first();
  kernels::fill<M>(this->device(), Vector<M>(this->gradient_of(unit), this->unit(unit).range.size()), 0.0);
}

template <class T>
void Zero23Reducer<T>::completed(index_t unit) {
  {
    const Region region(this->device().timers(), "gradient reduction, overlapped");
    pending_.push_back({unit, this->start_reduce_scatter(unit)});
  }
  if (!this->overlap()) finish_first();
}

template <class T>
void Zero23Reducer<T>::finish_first() {
  const typename GradientReducer<T>::Exposed exposed(*this);
  pending_.front().request.wait();
  const model::Unit& unit = this->unit(pending_.front().unit);
  const Range mine = shard_of(unit, this->sharding());
  const nn::ParameterBuffers<T>& p = this->model().parameters();
  const M* const sum = this->gradient_of(pending_.front().unit) + (mine.begin - unit.range.begin);
  kernels::add<M>(this->device(), Vector<const M>(sum, mine.size()),
                  Vector<M>(p.gradient.data() + p.layouts.reduced.at(mine.begin), mine.size()));
  pending_.erase(pending_.begin());
}

template <class T>
void Zero23Reducer<T>::finish_step() {
  while (!pending_.empty()) finish_first();
  const typename GradientReducer<T>::Exposed exposed(*this);
  this->reduce_1d();
  this->reduce_over_replicates();
}

#define NANOTRON_INSTANTIATE(T)   \
  template class ZeroReducer<T>;  \
  template class Zero1Reducer<T>; \
  template class Zero23Reducer<T>;
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::parallel
