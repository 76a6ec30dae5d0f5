#pragma once

// Optimizers whose update of an element reads nothing but that element: a rule for the loop of
// kernels/optim/element_update.hpp and the names of its states. Sharding, checkpoints, memory and states in bf16 are
// here. Private to optim.

#include <string>
#include <vector>

#include "nanotron/base/random.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/kernels/optim/update_operands.hpp"
#include "nanotron/model/parameters/parametrization.hpp"
#include "nanotron/optim/optimizer.hpp"

namespace nanotron::optim {

/// Learning rate and weight decay of a part, for updates of the size of AdamW's.
struct PartRate {
  PartRate(const deck::OptimizerConfig& config, const UpdatePart& part, double rate)
      : learning_rate(model::adamw_rate_factor(part.fan_in_ratio) * rate),
        weight_decay(part.decays ? config.weight_decay / model::adamw_rate_factor(part.fan_in_ratio) : 0.0) {}
  double learning_rate, weight_decay;
};

/// Parts of long ranges; or, with the random bits of their states in bf16, of one tensor each.
struct NoisyPart {
  UpdatePart part;
  kernels::RoundingNoise noise{};
};
std::vector<NoisyPart> noisy_parts(const deck::Config& config, const OptimizerSetup& setup);

/// No communication. M is double or float.
template <class M>
class ElementOptimizer : public Optimizer<M> {
 public:
  /// Updates the elements in setup.layouts.moments. states: their names. over: which tensors they belong to.
  ElementOptimizer(std::vector<std::string> states, const deck::Config& config, const OptimizerSetup& setup,
                   Arena& arena, Covers over = Covers::all)
      : config_(config.optimizer), names_(std::move(states)), over_(over), layout_(setup.layouts.moments) {
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (config.precision.moments == deck::MomentType::bf16)
        values_.emplace_back(arena.take<bf16>(memory_of_states(config_), layout_.size()));
      else
        values_.emplace_back(arena.take<M>(memory_of_states(config_), layout_.size()));
    }
    for (const auto& [part, noise] : noisy_parts(config, setup))
      parts_.push_back({part, {.states = states_of(part), .memory = config_.state_memory, .noise = noise}});
  }

  void update(Device& device, const UpdatedWeights<M>& weights, Vector<const M> gradient, double learning_rate,
              Vector<const kernels::UpdateScalars> scalars) override {
    for_each_operand(weights, gradient, scalars, [&](const auto& operands, const UpdatePart& part) {
      update_part(device, operands, PartRate(config_, part, learning_rate));
    });
  }
  std::vector<Moment<M>> moments() const override {
    std::vector<Moment<M>> all;
    for (std::size_t i = 0; i < names_.size(); ++i) all.push_back({names_[i], over_, layout_, values_[i]});
    return all;
  }

 protected:
  const deck::OptimizerConfig& config() const { return config_; }
  /// f(operands of a part, the part) for all parts, of update steps() + 1.
  template <class F>
  void for_each_operand(const UpdatedWeights<M>& weights, const Vector<const M>& gradient,
                        const Vector<const kernels::UpdateScalars>& scalars, const F& f) {
    for (auto& [part, operands] : parts_) {
      operands.p = weights.master_of(part);
      operands.g = Vector<const M>(gradient.data() + part.gradient, part.size());
      operands.scalars = scalars;
      operands.copy = weights.copy_of(part);
      operands.update = this->steps() + 1;
      f(operands, part);
    }
  }
  /// f(part, its states) for all parts.
  template <class F>
  void for_each_part(const F& f) const {
    for (const auto& [part, operands] : parts_) f(part, operands.states);
  }

 private:
  /// Queues the kernel.
  virtual void update_part(Device& device, const kernels::UpdateOperands<M>& operands, const PartRate& rate) = 0;

  struct Part {
    UpdatePart at;
    kernels::UpdateOperands<M> operands;  // here, since a step allocates nothing
  };
  std::vector<kernels::StateVector<M>> states_of(const UpdatePart& p) const {
    std::vector<kernels::StateVector<M>> states;
    for (const kernels::StateVector<M>& whole : values_) {
      states.push_back(std::visit(
          [&]<class S>(const Vector<S>& v) {
            return kernels::StateVector<M>(Vector<S>(v.data() + p.moments, p.size()));
          },
          whole));
    }
    return states;
  }

  deck::OptimizerConfig config_;
  std::vector<std::string> names_;
  Covers over_;
  nn::BufferLayout layout_;
  std::vector<kernels::StateVector<M>> values_;
  std::vector<Part> parts_;
};

}  // namespace nanotron::optim
