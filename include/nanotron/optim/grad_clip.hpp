#pragma once

// Clipping by the global L2 norm (Pascanu et al. 2013), with the sum over the whole model:
//
//   norm = sqrt(sum g^2)      scale = min(1, max_norm / (norm + 1e-6))       (as PyTorch)

#include <vector>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/model/sharding.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::optim {

/// Ranges of the gradient's buffer that this rank answers for, of those in `flat`: between the ranks of a model and of
/// a shard group each element once; of experts between those of a model, of a group that shares the same experts, and
/// of an expert-parallel group.
std::vector<Range> owned_gradient_ranges(const model::ParameterTable& table, const nn::ParameterLayouts& layouts,
                                         const model::Sharding& sharding, const Range& flat);

/// Gradients that this rank answers for, and the groups that answer for all of them between them, besides the model's.
struct NormPart {
  std::vector<Range> answered;
  std::vector<comm::Group*> groups;
};

/// The norm of the gradients already summed over the replicas. Waits for the device; collective over the group that
/// holds one model and those of the parts. Its bits depend on the gradients alone, not on where they lie
/// (kernels/reduction/exact_sum.hpp); infinity where one is not finite.
template <class M>
double global_norm(Device& device, comm::Group& model, const std::vector<NormPart>& parts, Vector<const M> gradient);

/// The factor above; 1 when max_norm is 0 (no clipping).
double clip_factor(double norm, double max_norm);

}  // namespace nanotron::optim
