#include "nanotron/model/parameters/parametrization.hpp"

#include <cmath>

namespace nanotron::model {

Scaling scaling_of(const deck::ModelConfig& m, Role role) {
  // A layer adds two projections to the hidden states, hence 2 L (Shoeybi et al. 2019, section 4).
  const double deviation = role == Role::residual
                               ? m.initializer_range / std::sqrt(2.0 * static_cast<double>(m.num_hidden_layers))
                               : m.initializer_range;
  if (m.parametrization == deck::Parametrization::standard || role == Role::embedding) return {deviation, 1.0};
  const double ratio = static_cast<double>(m.hidden_size) / static_cast<double>(m.base_hidden_size);
  return {deviation / (role == Role::output ? ratio : std::sqrt(ratio)), ratio};
}

double adamw_rate(double fan_in_ratio) { return 1.0 / fan_in_ratio; }
double muon_rate(double fan_in_ratio) { return 1.0 / std::sqrt(fan_in_ratio); }

}  // namespace nanotron::model
