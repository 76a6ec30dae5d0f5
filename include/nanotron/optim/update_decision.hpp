#pragma once

// The loss and the gradient norm of a step over all ranks, and the update that follows from them
// (kernels/optim/update_scalars.hpp): on the device, so that the host queues the update without waiting for them.
//
// Both are exact sums (kernels/reduction/exact_sum.hpp): the same bits however rows and gradients are sharded. Over the
// ranks of a group such a sum is two all-reduces, of 8 and of 32 bytes.

#include <memory>
#include <vector>

#include "nanotron/comm/group.hpp"
#include "nanotron/kernels/optim/update_scalars.hpp"
#include "nanotron/model/parameters/sharding.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/pinned_memory.hpp"

namespace nanotron::optim {

/// Ranges of the gradient buffer that this rank owns, within `flat` of the parameter space. Each element has one owner
/// in tp x pp x shard group; for experts in tp x pp x shard group of the experts x expert-parallel group, which spans
/// tp where they are whole.
std::vector<Range> owned_gradient_ranges(const model::ParameterTable& table, const nn::ParameterLayouts& layouts,
                                         const model::Sharding& sharding, const Range& flat);

/// Gradients that this rank owns, and groups: over these and the groups of the whole model each has one owner.
struct NormPart {
  std::vector<Range> owned;
  std::vector<comm::Group*> groups;
};

struct DecisionSetup {
  std::vector<NormPart> norm;
  std::vector<comm::Group*> model;  // for the norm, after the groups of its parts
  std::vector<comm::Group*> loss;
  std::vector<comm::Group*> all{};  // together all ranks, so that all decide the same; empty: not compared
};

/// sum (1) <- its total over the ranks of all groups. top_place (1) is overwritten. Collective over the groups.
void sum_over(Device& device, const std::vector<comm::Group*>& groups, Vector<kernels::ExactSum> sum,
              Vector<std::int64_t> top_place);

/// M is double or float, the master type.
template <class M>
class UpdateDecision {
 public:
  /// Takes its memory from the arena (planning or real). The groups must outlive it.
  UpdateDecision(DecisionSetup setup, Arena& arena);

  /// Queues the sums over all ranks and scalars(). gradient: the whole buffer, already reduced over the data-parallel
  /// group. With DecisionSetup::all no rank updates where ranks have other losses or norms. Collective over the groups.
  void decide(Device& device, Vector<const double> losses, Vector<const M> gradient,
              const kernels::UpdateLimits& limits);
  /// (1), for kernels that are queued after decide().
  Vector<const kernels::UpdateScalars> scalars() const { return scalars_; }
  /// scalars() on the host. Waits for all work queued on the device, including other copies to the host.
  const kernels::UpdateScalars& read(Device& device);

  /// Only the sum of losses, as decide() computes it. Waits for the device; collective over the groups of the loss.
  double loss_sum(Device& device, Vector<const double> losses);

 private:
  struct OnHost {
    PinnedArray<kernels::UpdateScalars> scalars{1};
    PinnedArray<kernels::ExactSum> loss{1};
  };
  Vector<kernels::ExactSum> sum_at(index_t i) const { return Vector<kernels::ExactSum>(sums_.data() + i, 1); }
  void sum_losses(Device& device, Vector<const double> losses);
  void sum_squares(Device& device, Vector<const M> gradient);
  void agree(Device& device);

  DecisionSetup setup_;
  Vector<std::int64_t> top_place_, compared_;
  Vector<kernels::UpdateScalars> scalars_;
  Vector<kernels::ExactSum> sums_;  // loss, norm, its parts, the owned ranges: as many as this rank has
  std::unique_ptr<OnHost> host_;    // null when planning
};

}  // namespace nanotron::optim
