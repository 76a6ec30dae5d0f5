#include "nanotron/kernels/optim/adamw.hpp"

#include <cmath>

#include "nanotron/kernels/optim/element_update.hpp"

namespace nanotron::kernels {
namespace {

template <class M>
struct AdamwRule {
  static constexpr int states = 2;
  M keep, beta1, rest1, beta2, rest2, root2, eps, rate;

  NANOTRON_FUNCTION M operator()(M p, M g, M (&s)[states]) const {
    const M kept = p * keep;
    s[0] = beta1 * s[0] + rest1 * g;
    s[1] = beta2 * s[1] + rest2 * (g * g);
    return kept - rate * (s[0] / (std::sqrt(s[1]) / root2 + eps));
  }
};

}  // namespace

template <class M>
void adamw(Device& device, const UpdateOperands<M>& operands, const AdamwStep& step) {
  const auto t = static_cast<double>(operands.update);
  const AdamwRule<M> rule{
      .keep = static_cast<M>(1.0 - step.learning_rate * step.weight_decay),
      .beta1 = static_cast<M>(step.beta1),
      .rest1 = static_cast<M>(1.0 - step.beta1),
      .beta2 = static_cast<M>(step.beta2),
      .rest2 = static_cast<M>(1.0 - step.beta2),
      .root2 = static_cast<M>(std::sqrt(1.0 - std::pow(step.beta2, t))),
      .eps = static_cast<M>(step.eps),
      .rate = static_cast<M>(step.learning_rate / (1.0 - std::pow(step.beta1, t))),
  };
  update_elements(device, "adamw", operands, rule);
}

#define NANOTRON_INSTANTIATE(M) template void adamw<M>(Device&, const UpdateOperands<M>&, const AdamwStep&);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
