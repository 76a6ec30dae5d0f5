#pragma once

#include <vector>

#include "nanotron/base/types.hpp"

namespace nanotron::reference {

/// average += (1 - decay) (p - average)
template <class M>
void weight_average(std::vector<M>& average, const std::vector<M>& p, double decay) {
  const M share = static_cast<M>(1.0 - decay);
  for (std::size_t i = 0; i < p.size(); ++i) average[i] += share * (p[i] - average[i]);
}

}  // namespace nanotron::reference
