#pragma once

// Clipping by the global L2 norm (Pascanu et al. 2013), with the sum over the whole model:
//
//   norm = sqrt(sum g^2)      scale = min(1, max_norm / (norm + 1e-6))       (as PyTorch)

#include <vector>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/model/parameter_table.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::optim {

/// The norm of the gradients already summed over the replicas. owned: see model::owned_ranges. Waits for the
/// device; collective over the group that holds one model; the same bits on each of its ranks.
template <class M>
double global_norm(Device& device, comm::Group& model, const std::vector<model::FlatRange>& owned,
                   Vector<const M> gradient);

/// The factor above; 1 when max_norm is 0 (no clipping).
double clip_factor(double norm, double max_norm);

}  // namespace nanotron::optim
