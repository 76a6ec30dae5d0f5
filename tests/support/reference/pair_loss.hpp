#pragma once

// Reference implementation of kernels/preference/pair_loss, see reference/gemm.hpp: as DPOTrainer of TRL 1.16 writes
// it.

#include <cmath>

namespace nanotron::kernels::reference {

/// chosen, rejected: log-probabilities of the trained model and of the reference model.
struct Pair {
  double chosen, rejected, chosen_reference, rejected_reference;
};

inline double pair_loss(const Pair& pair, double beta) {
  const double delta = pair.chosen - pair.chosen_reference - (pair.rejected - pair.rejected_reference);
  return std::log1p(std::exp(-beta * delta));  // -logsigmoid(beta delta)
}

}  // namespace nanotron::kernels::reference
