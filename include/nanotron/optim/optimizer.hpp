#pragma once

// What updates the flat parameters, whatever its rule: one type for each, chosen by the deck.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nanotron/comm/group.hpp"
#include "nanotron/comm/step_traffic.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/model/sharding.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::optim {

/// Of which tensors an optimizer keeps something. Hidden matrices: those of the layers.
enum class Covers { all, hidden_matrices, others };

inline bool covers(Covers what, const nn::ParameterSpec& spec) {
  const bool is_hidden = spec.is_stacked && !spec.is_vector;
  return what == Covers::all || is_hidden == (what == Covers::hidden_matrices);
}

/// A running mean over the gradients, as it goes into a checkpoint: /optimizer/<name>.
template <class M>
struct Moment {
  std::string name;
  Covers over = Covers::all;
  nn::BufferLayout place;
  Vector<M> values;
};

template <class M>
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// One update with gradient_scale * gradient, where this rank keeps its moments. Collective over the tensor-parallel
  /// and the shard group.
  virtual void update(Device& device, Vector<M> parameters, Vector<const M> gradient, double learning_rate,
                      double gradient_scale) = 0;

  /// As in the deck and in a checkpoint: moments of one name mean nothing to another.
  virtual std::string name() const = 0;
  virtual std::vector<Moment<M>> moments() const = 0;
  /// Of one update.
  virtual comm::StepTraffic traffic() const { return {}; }

  /// Updates done so far; part of a checkpoint.
  virtual std::int64_t steps() const = 0;
  virtual void set_steps(std::int64_t steps) = 0;
};

/// What an optimizer works on; only read while it is made, but for the groups.
struct OptimizerSetup {
  const model::ParameterTable& table;
  const nn::ParameterLayouts& layouts;
  model::Sharding sharding;
  comm::Group* tp = &comm::alone();
};

/// The one the deck names; config is resolved. Moments start at zero.
template <class M>
std::unique_ptr<Optimizer<M>> make_optimizer(const deck::Config& config, const OptimizerSetup& place, Arena& arena);

}  // namespace nanotron::optim
