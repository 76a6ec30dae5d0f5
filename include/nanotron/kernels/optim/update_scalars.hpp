#pragma once

// Values that only the device knows when the update of a step is queued, and that its kernels read when they run:
//
//   loss = sum of the losses / targets        norm = sqrt(sum g^2)
//   gradient_scale = min(1, max_norm / (norm + 1e-6))              gradient clipping (Pascanu et al. 2013), as PyTorch
//
// An update is carried out if loss and (gradient_scale norm)^2 are finite, the square in the master type (Adam
// squares), and if the norm is at most bad_norm.

#include <limits>

#include "nanotron/kernels/reduction/exact_sum.hpp"

namespace nanotron::kernels {

struct UpdateScalars {
  double loss = 0.0, norm = 0.0;
  double gradient_scale = 1.0;
  bool updates = true;  // else a kernel of the update changes no parameter and no moment
  bool agrees = true;   // false: other ranks have another loss or norm
};

struct UpdateLimits {
  double targets = 1.0;                                       // of the global batch
  double max_norm = 0.0;                                      // 0: no clipping
  double bad_norm = std::numeric_limits<double>::infinity();  // no update above it
};

NANOTRON_FUNCTION inline double clip_factor(double norm, double max_norm) {
  if (!(max_norm > 0.0)) return 1.0;
  const double factor = max_norm / (norm + 1e-6);
  return factor < 1.0 ? factor : 1.0;
}

/// scalars (1) <- from the sums of the losses and of g^2, (1) each. M is double or float, the master type.
template <class M>
void update_scalars(Device& device, Vector<const ExactSum> losses, Vector<const ExactSum> squares,
                    const UpdateLimits& limits, Vector<UpdateScalars> scalars);

/// Whether all ranks decided from the same numbers: `compared` is all-reduced (max) between the two calls. compared
/// (compared_values) <- the bits of loss and norm and their complements; then scalars (1) <- no update if the largest
/// are not the smallest.
inline constexpr index_t compared_values = 4;
void write_compared(Device& device, Vector<const UpdateScalars> scalars, Vector<std::int64_t> compared);
void require_agreement(Device& device, Vector<const std::int64_t> compared, Vector<UpdateScalars> scalars);

}  // namespace nanotron::kernels
