#pragma once

// Gradient clipping by the global L2 norm (Pascanu et al. 2013), with the sum over the whole model:
//
//   norm = sqrt(sum g^2)      scale = min(1, max_norm / (norm + 1e-6))       (as PyTorch)

#include <vector>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/model/sharding.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::optim {

/// Ranges of the gradient buffer that this rank owns, within `flat` of the parameter space. Each element has one owner
/// in model group x shard group; for experts in model group x shard group of the experts x expert-parallel group.
std::vector<Range> owned_gradient_ranges(const model::ParameterTable& table, const nn::ParameterLayouts& layouts,
                                         const model::Sharding& sharding, const Range& flat);

/// Gradients that this rank owns, and the groups over which, with the model group, each has one owner.
struct NormPart {
  std::vector<Range> owned;
  std::vector<comm::Group*> groups;
};

/// The norm of the gradients, already reduced over the data-parallel group. Waits for the device; collective over the
/// model group and the groups of the parts. Its bits depend on the gradients only, not on how they are sharded
/// (kernels/reduction/exact_sum.hpp). Infinity where a gradient is not finite or its square overflows.
template <class M>
double global_norm(Device& device, comm::Group& model, const std::vector<NormPart>& parts, Vector<const M> gradient);

/// The factor above; 1 when max_norm is 0 (no clipping).
double clip_factor(double norm, double max_norm);

}  // namespace nanotron::optim
