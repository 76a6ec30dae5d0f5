#include "nanotron/parallel/reducers/gradient_reducer.hpp"

#include <algorithm>

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::parallel {

template <class T>
GradientReducer<T>::GradientReducer(const ReducerContext<T>& c, const ReduceWhen& when)
    : model_(&c.model),
      section_(c.section),
      sharding_(c.sharding),
      groups_(&c.groups),
      device_(&c.device),
      overlap_(c.config.parallel.overlap),
      micro_batches_(c.micro_batches()),
      when_(when),
      partial_(c.model, c.section, c.device, c.arena),
      added_(c.model.table().units.size() + 1, 0) {}

template <class T>
index_t GradientReducer<T>::number_of(index_t source) const {
  const index_t unit = table().unit_of(source, section_);
  const bool is_end = unit == table().embedding_unit() && table().is_of_end(source) && table().is_shared();
  return when_.end_apart && is_end ? static_cast<index_t>(table().units.size()) : unit;
}

template <class T>
index_t GradientReducer<T>::uses_of(index_t number) const {
  const index_t uses = unit(number).uses;
  const bool is_apart =
      when_.end_apart && table().is_shared() && (is_end(number) || number == table().embedding_unit());
  return !is_apart ? uses : is_end(number) ? uses - 1 : 1;
}

template <class T>
index_t GradientReducer<T>::until_complete() const {
  return when_.micro_batches == ReduceWhen::all_of_step ? micro_batches_ : when_.micro_batches;
}

template <class T>
void GradientReducer<T>::begin_step(index_t micro_batches) {
  micro_batches_ = micro_batches;
  added_.assign(added_.size(), 0);
  start_step();
}

template <class T>
void GradientReducer<T>::begin(index_t source) {
  const index_t number = number_of(source);
  if (number == model::no_unit) return;
  before_use(number);
  if (added_[static_cast<std::size_t>(number)] == 0) before_first_use(number);
}

template <class T>
void GradientReducer<T>::end(index_t source) {
  const index_t number = number_of(source);
  if (number == model::no_unit) return;
  after_use(number);
  index_t& added = added_[static_cast<std::size_t>(number)];
  if (++added < until_complete() * uses_of(number)) return;
  added = 0;
  partial_.sum(unit(number).range);
  completed(number);
}

template <class T>
void GradientReducer<T>::end_inputs(index_t source) {
  const index_t number = number_of(source);
  if (number != model::no_unit) after_inputs(number);
}

template <class T>
void GradientReducer<T>::finish() {
  complete_1d();
  finish_step();
}

template <class T>
comm::StepTraffic GradientReducer<T>::traffic() const {
  const Range params_2d{section_.params_1d.end, section_.flat.end};
  return traffic_1d() + micro_batches_ / until_complete() * partial_.traffic(params_2d) + strategy_traffic();
}

template <class T>
auto GradientReducer<T>::gradient(const Range& flat) const -> Vector<M> {
  if (flat.size() == 0) return {};
  const nn::ParameterBuffers<T>& p = model_->parameters();
  return Vector<M>(p.gradient.data() + p.layouts.gradient.at(flat.begin), flat.size());
}

template <class T>
void GradientReducer<T>::clear(const nn::BufferLayout& layout) const {
  M* const gradient = model_->parameters().gradient.data();
  for (const nn::BufferLayout::Part& part : layout.parts()) {
    const index_t begin = std::max(part.range.begin, section_.flat.begin),
                  end = std::min(part.range.end, section_.flat.end);
    if (begin < end)
      kernels::fill<M>(*device_, Vector<M>(gradient + part.at + begin - part.range.begin, end - begin), 0.0);
  }
}

NANOTRON_INSTANTIATE_CLASS(GradientReducer)

}  // namespace nanotron::parallel
