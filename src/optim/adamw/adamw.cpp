#include "nanotron/optim/adamw/adamw.hpp"

#include <cmath>

#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/kernels/optim/element_update.hpp"
#include "optim/element_optimizer.hpp"
#include "optim/optimizers.hpp"

namespace nanotron::optim {

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

template <class M>
void update_by_adamw(Device& device, const kernels::UpdateOperands<M>& operands, const AdamwStep& step) {
  const auto t = static_cast<double>(operands.update);
  const AdamwRule<M> rule{
      .keep = static_cast<M>(1.0 - step.learning_rate * step.weight_decay),
      .beta1 = static_cast<M>(step.beta1),
      .rest1 = static_cast<M>(1.0 - step.beta1),
      .beta2 = static_cast<M>(step.beta2),
      .rest2 = static_cast<M>(1.0 - step.beta2),
      .root2 = static_cast<M>(std::sqrt(1.0 - power(step.beta2, t))),
      .eps = static_cast<M>(step.eps),
      .rate = static_cast<M>(step.learning_rate / (1.0 - power(step.beta1, t))),
  };
  kernels::update_elements(device, "adamw", operands, rule);
}

namespace {

template <class M>
class Adamw final : public ElementOptimizer<M> {
 public:
  Adamw(const deck::Config& config, const OptimizerSetup& setup, Arena& arena, Covers over = Covers::all)
      : ElementOptimizer<M>({"exp_avg", "exp_avg_sq"}, config, setup, arena, over) {}
  std::string name() const override { return "adamw"; }

 private:
  void update_part(Device& device, const kernels::UpdateOperands<M>& operands, const PartRate& rate) override {
    const deck::OptimizerConfig& c = this->config();
    update_by_adamw<M>(device, operands,
                       {.learning_rate = rate.learning_rate,
                        .beta1 = c.beta1,
                        .beta2 = c.beta2,
                        .eps = c.eps,
                        .weight_decay = rate.weight_decay});
  }
};

}  // namespace

OptimizerKind adamw() { return kind_of<Adamw>("adamw"); }

template <class M>
std::unique_ptr<Optimizer<M>> make_adamw(const deck::Config& config, const OptimizerSetup& setup, Arena& arena,
                                         Covers over) {
  return std::make_unique<Adamw<M>>(config, setup, arena, over);
}

#define NANOTRON_INSTANTIATE(M)                                                                   \
  template void update_by_adamw<M>(Device&, const kernels::UpdateOperands<M>&, const AdamwStep&); \
  template std::unique_ptr<Optimizer<M>> make_adamw(const deck::Config&, const OptimizerSetup&, Arena&, Covers);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::optim
