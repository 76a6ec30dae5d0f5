#pragma once

// Interface of the optimizers that update the flat parameters: one class per update rule, chosen by optimizer%name. An
// optimizer names its states; sharding, checkpoints, resharding and the comparison of replicas follow from that.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "nanotron/comm/group.hpp"
#include "nanotron/comm/watch/step_traffic.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/keys/optimizer.hpp"
#include "nanotron/kernels/optim/update_scalars.hpp"
#include "nanotron/model/parameters/parameter_table.hpp"
#include "nanotron/model/parameters/sharding.hpp"
#include "nanotron/nn/attention/score_maxima.hpp"
#include "nanotron/optim/moment.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::optim {

/// Where a rank keeps the states that kernels update element by element.
inline MemoryKind memory_of_states(const deck::OptimizerConfig& config) {
  return config.state_memory == deck::StateMemory::host ? MemoryKind::host_optimizer : MemoryKind::optimizer;
}

/// For continue_update(): the whole update.
inline constexpr index_t all_sources = std::numeric_limits<index_t>::max();

/// Elements that are contiguous in each of the buffers, and their offsets there.
struct UpdatePart {
  Range range;                                        // of the flat space
  index_t parameters = 0, gradient = 0, moments = 0;  // offsets in the master, reduced-gradient and moment buffers
  bool decays = false;
  double fan_in_ratio = 1.0;

  index_t size() const { return range.size(); }
};

/// The parts of `range` that layouts.moments stores.
std::vector<UpdatePart> update_parts(const Range& range, const nn::ParameterLayouts& layouts);

/// The same for the whole flat space, split also at the boundaries of model::update_ranges.
std::vector<UpdatePart> update_parts(const model::ParameterTable& table, const nn::ParameterLayouts& layouts);

/// What an update changes: the master weights at layouts.master and, unless it is empty, a copy of all in bf16.
template <class M>
struct UpdatedWeights {
  Vector<M> master;
  Vector<bf16> copy{};

  Vector<M> master_of(const UpdatePart& part) const { return Vector<M>(master.data() + part.parameters, part.size()); }
  Vector<bf16> copy_of(const UpdatePart& part) const {
    return copy.extent(0) == 0 ? copy : Vector<bf16>(copy.data() + part.range.begin, part.size());
  }
};

/// An optimizer may take gradients at other weights than those that its training is for: those are a state then
/// (Moment::are_weights) and the master weights are for gradients.
enum class WeightsFor { gradients, use };

template <class M>
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Queues update steps() + 1 of the elements whose moments this rank stores. `scalars` is one UpdateScalars in device
  /// memory: its gradient_scale multiplies the gradient, its `updates` says whether the device carries the update out.
  /// Collective over the tensor-parallel and the shard group.
  virtual void update(Device& device, const UpdatedWeights<M>& weights, Vector<const M> gradient, double learning_rate,
                      Vector<const kernels::UpdateScalars> scalars) = 0;

  /// With states in host memory update() of AdamW and its kin queues that of 1-D parameters only. The rest follows, on
  /// the same device, before the next update and before anything else writes what it reads: that of sources
  /// (model::ParameterTable) up to this one, a source's before its weights are read.
  virtual void continue_update(Device&, index_t /*source*/) {}
  /// Call it after the whole of an update, before anything else reads or writes the states.
  virtual void finish_update(Device&) {}

  /// As in the deck and in a checkpoint. Moments of one optimizer cannot be used by another.
  virtual std::string name() const = 0;
  virtual std::vector<Moment<M>> moments() const = 0;
  /// Per update.
  virtual comm::StepTraffic traffic() const { return {}; }

  /// Whether a gradient with labels drawn from the model (kernels/vocab/drawn_labels.hpp) is wanted after update
  /// steps(), of the same batch at the new weights; and what follows from it. targets: of the global batch.
  virtual bool wants_curvature() const { return false; }
  virtual void update_curvature(Device&, const UpdatedWeights<M>&, Vector<const M> /*gradient*/, double /*targets*/,
                                Vector<const kernels::UpdateScalars>) {}

  /// Where weights to use are a state: master <- either kind; and from master with the weights of a checkpoint: that
  /// state, master <- those for gradients. In the parts that this rank updates; nothing before the first update.
  virtual void load_weights(Device&, Vector<M> /*master*/, WeightsFor) {}
  virtual void take_weights(Device&, Vector<M> /*master*/) {}

  /// Updates carried out so far; part of a checkpoint. The caller that queues an update counts it once it is known to
  /// be carried out.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

 private:
  std::int64_t steps_ = 0;
};

/// What an optimizer works on. Read only during construction, but the groups must outlive the optimizer.
struct OptimizerSetup {
  const model::ParameterTable& table;
  const nn::ParameterLayouts& layouts;
  model::Sharding sharding;
  comm::Group* tp = &comm::alone();
  std::size_t host_bucket = 0;  // bytes of a bucket of states in host memory, see src/optim/host_states; 0: by itself
};

/// The optimizer that the deck names; config is resolved. Moments start at zero.
template <class M>
std::unique_ptr<Optimizer<M>> make_optimizer(const deck::Config& config, const OptimizerSetup& setup, Arena& arena);

/// What holds of the weights after each update, whatever the optimizer.
template <class M>
class WeightRule {
 public:
  virtual ~WeightRule() = default;
  /// Queues it after an update of these weights, if `scalars` carry that out. No communication.
  virtual void apply(Device& device, const UpdatedWeights<M>& weights,
                     Vector<const kernels::UpdateScalars> scalars) = 0;
};

/// Null: none. maxima: of the step whose gradient an update is of.
template <class M>
std::unique_ptr<WeightRule<M>> make_weight_rule(const deck::Config& config, const OptimizerSetup& setup,
                                                const nn::ScoreMaxima& maxima, Arena& arena);

/// What an optimizer requires of other keys, such as precision%reproducible and precision%moments.
void check_optimizer(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::optim
