#include "nanotron/optim/adamw.hpp"

#include <algorithm>

#include "nanotron/kernels/adamw.hpp"

namespace nanotron::optim {
namespace {

// Cuts [begin, end) where a buffer goes on elsewhere: the end of the first part of it.
index_t contiguous_end(const nn::Placement& place, const Range& range) {
  return place.within(range).front().range.end;
}

}  // namespace

std::vector<UpdatePart> update_parts(const model::ParameterTable& table, const nn::ParameterPlaces& places) {
  std::vector<UpdatePart> parts;
  for (const auto& [range, decays] : model::decay_ranges(table)) {
    for (const nn::Placement::Part& held : places.moments.within(range)) {
      for (index_t begin = held.range.begin, end = 0; begin < held.range.end; begin = end) {
        const Range rest{begin, held.range.end};
        end = std::min(contiguous_end(places.master, rest), contiguous_end(places.reduced, rest));
        parts.push_back({.size = end - begin,
                         .parameters = places.master.at(begin),
                         .gradient = places.reduced.at(begin),
                         .moments = held.at + begin - held.range.begin,
                         .decays = decays});
      }
    }
  }
  return parts;
}

template <class M>
Adamw<M>::Adamw(const deck::OptimizerConfig& config, std::vector<UpdatePart> parts, index_t size, Arena& arena)
    : config_(config),
      parts_(std::move(parts)),
      exp_avg_(arena.take<M>(MemoryKind::optimizer, size)),
      exp_avg_sq_(arena.take<M>(MemoryKind::optimizer, size)) {}

template <class M>
void Adamw<M>::update(Device& device, Vector<M> parameters, Vector<const M> gradient,
                      double learning_rate, double gradient_scale) {
  ++steps_;
  for (const UpdatePart& p : parts_) {
    const kernels::AdamwStep step{.learning_rate = learning_rate,
                                  .beta1 = config_.beta1,
                                  .beta2 = config_.beta2,
                                  .eps = config_.eps,
                                  .weight_decay = p.decays ? config_.weight_decay : 0.0,
                                  .step = steps_,
                                  .gradient_scale = gradient_scale};
    kernels::adamw<M>(device, Vector<M>(parameters.data() + p.parameters, p.size),
                      Vector<const M>(gradient.data() + p.gradient, p.size),
                      Vector<M>(exp_avg_.data() + p.moments, p.size), Vector<M>(exp_avg_sq_.data() + p.moments, p.size),
                      step);
  }
}

template class Adamw<double>;
template class Adamw<float>;

}  // namespace nanotron::optim
