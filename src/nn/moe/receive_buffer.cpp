#include "nanotron/nn/moe/receive_buffer.hpp"

#include <cmath>

#include "nanotron/deck/keys/model.hpp"

namespace nanotron::nn {
namespace {

// z with P(Z <= z) = q of a standard normal Z, by bisection; q < 1.
double normal_quantile(double q) {
  double low = -40.0, high = 40.0;
  for (int i = 0; i < 200; ++i) {
    const double z = (low + high) / 2.0;
    const bool is_above = 0.5 * std::erfc(z / std::sqrt(2.0)) > 1.0 - q;  // P(Z > z)
    (is_above ? low : high) = z;
  }
  return (low + high) / 2.0;
}

}  // namespace

double received_quantile(double q, double even, index_t ranks, double c) {
  const double of_choices = (1.0 - 1.0 / static_cast<double>(ranks)) / even;
  return 1.0 + normal_quantile(q) * std::sqrt(of_choices + c * c);
}

double receive_buffer_factor(const deck::MoeConfig& moe, index_t even, index_t ranks) {
  return moe.receive_quantile > 0.0 ? received_quantile(moe.receive_quantile, static_cast<double>(even), ranks)
                                    : moe.receive_factor;
}

}  // namespace nanotron::nn
