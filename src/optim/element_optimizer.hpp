#pragma once

// Optimizers whose update of an element reads nothing but that element: a rule for the loop of
// kernels/optim/element_update.hpp and the names of its states. Sharding, checkpoints, memory and states in bf16 are
// here. Private to optim.

#include <optional>
#include <string>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/kernels/optim/update_operands.hpp"
#include "nanotron/model/parameters/parametrization.hpp"
#include "nanotron/optim/optimizer.hpp"
#include "optim/host_states/host_states.hpp"
#include "optim/host_states/source_order.hpp"

namespace nanotron::optim {

/// Learning rate and weight decay of a part, for updates of the size of AdamW's.
struct PartRate {
  PartRate(const deck::OptimizerConfig& config, const UpdatePart& part, double rate)
      : learning_rate(model::adamw_rate_factor(part.fan_in_ratio) * rate),
        weight_decay(part.decays ? config.weight_decay / model::adamw_rate_factor(part.fan_in_ratio) : 0.0) {}
  double learning_rate, weight_decay;
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
    parts_ = noisy_parts(config, setup);
    if (config_.state_memory == deck::StateMemory::host) parts_ = by_source(parts_, setup.table);
    states_.emplace(values_, config_.state_memory, elements_of(parts_), setup.host_bucket, arena);
    queued_ = parts_.size();
  }

  void update(Device& device, const UpdatedWeights<M>& weights, Vector<const M> gradient, double learning_rate,
              Vector<const kernels::UpdateScalars> scalars) override {
    learning_rate_ = learning_rate;
    begin_pass(device, weights, gradient, scalars);
    continue_update(device, model::no_unit);
  }
  void continue_update(Device& device, index_t source) override {
    queue_parts(device, source, [&](const kernels::UpdateOperands<M>& operands, const UpdatePart& part) {
      update_part(device, operands, PartRate(config_, part, learning_rate_));
    });
  }
  void finish_update(Device& device) override { states_->finish(device); }
  std::vector<Moment<M>> moments() const override {
    std::vector<Moment<M>> all;
    for (std::size_t i = 0; i < names_.size(); ++i) all.push_back({names_[i], over_, layout_, values_[i]});
    return all;
  }

 protected:
  const deck::OptimizerConfig& config() const { return config_; }
  /// f(operands of a part, the part) for all parts, of update steps() + 1.
  template <class F>
  void for_each_operand(Device& device, const UpdatedWeights<M>& weights, const Vector<const M>& gradient,
                        const Vector<const kernels::UpdateScalars>& scalars, const F& f) {
    begin_pass(device, weights, gradient, scalars);
    queue_parts(device, all_sources, f);
  }
  /// f(part, its states where they are stored) for all parts.
  template <class F>
  void for_each_stored(const F& f) const {
    for (const NoisyPart& p : parts_) {
      std::vector<kernels::StateVector<M>> states;
      for (const kernels::StateVector<M>& whole : values_) {
        states.push_back(std::visit(
            [&]<class S>(const Vector<S>& v) {
              return kernels::StateVector<M>(Vector<S>(v.data() + p.part.moments, p.part.size()));
            },
            whole));
      }
      f(p.part, states);
    }
  }

 private:
  /// Queues the kernel.
  virtual void update_part(Device& device, const kernels::UpdateOperands<M>& operands, const PartRate& rate) = 0;

  void begin_pass(Device& device, const UpdatedWeights<M>& weights, const Vector<const M>& gradient,
                  const Vector<const kernels::UpdateScalars>& scalars) {
    NANOTRON_REQUIRE(queued_ == parts_.size(), "{} of {} parts of the last update are queued", queued_, parts_.size());
    weights_ = weights, gradient_ = gradient;
    operands_.scalars = scalars;
    operands_.update = this->steps() + 1;
    queued_ = 0;
    states_->begin(device);
  }
  // f(operands, part) for the parts up to those of the source.
  template <class F>
  void queue_parts(Device& device, index_t source, const F& f) {
    for (; queued_ < parts_.size() && parts_[queued_].source <= source; ++queued_) {
      const NoisyPart& whole = parts_[queued_];
      states_->for_each_part(device, whole.moments(), [&](const Range& moments, const auto& states) {
        const index_t begin = whole.part.range.begin + moments.begin - whole.part.moments;
        const auto& [part, noise, of] = piece_of(whole, {begin, begin + moments.size()});
        operands_.p = weights_.master_of(part);
        operands_.g = Vector<const M>(gradient_.data() + part.gradient, part.size());
        operands_.states = states;
        operands_.copy = weights_.copy_of(part);
        operands_.noise = noise;
        f(operands_, part);
      });
    }
    states_->store(device);
  }

  deck::OptimizerConfig config_;
  std::vector<std::string> names_;
  Covers over_;
  nn::BufferLayout layout_;
  std::vector<kernels::StateVector<M>> values_;
  std::vector<NoisyPart> parts_;
  std::optional<StatesOfUpdate<M>> states_;
  // Of the update that is being queued:
  double learning_rate_ = 0.0;
  UpdatedWeights<M> weights_{};
  Vector<const M> gradient_{};
  kernels::UpdateOperands<M> operands_{};  // here, since a step allocates nothing
  std::size_t queued_ = 0;                 // parts
};

}  // namespace nanotron::optim
