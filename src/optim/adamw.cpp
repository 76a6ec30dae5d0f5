#include "nanotron/optim/adamw.hpp"

#include "nanotron/kernels/adamw.hpp"

namespace nanotron::optim {
namespace {

template <class M>
Vector<M> part(const Vector<M>& flat, const model::FlatRange& range) {
  return Vector<M>(flat.data() + range.begin, range.end - range.begin);
}

}  // namespace

template <class M>
Adamw<M>::Adamw(const deck::OptimizerConfig& config, std::vector<model::DecayRange> decayed,
                index_t size, Arena& arena)
    : config_(config),
      decayed_(std::move(decayed)),
      exp_avg_(arena.take<M>(MemoryKind::optimizer, size)),
      exp_avg_sq_(arena.take<M>(MemoryKind::optimizer, size)) {}

template <class M>
void Adamw<M>::update(Device& device, Vector<M> parameters, Vector<const M> gradient,
                      double learning_rate, double gradient_scale) {
  ++steps_;
  for (const auto& [range, decays] : decayed_) {
    const kernels::AdamwStep step{.learning_rate = learning_rate,
                                  .beta1 = config_.beta1,
                                  .beta2 = config_.beta2,
                                  .eps = config_.eps,
                                  .weight_decay = decays ? config_.weight_decay : 0.0,
                                  .step = steps_,
                                  .gradient_scale = gradient_scale};
    kernels::adamw<M>(device, part(parameters, range), part(gradient, range), part(exp_avg_, range),
                      part(exp_avg_sq_, range), step);
  }
}

template class Adamw<double>;
template class Adamw<float>;

}  // namespace nanotron::optim
