// AdEMAMix (Pagliardini, Ablin and Grangier 2024, "The AdEMAMix optimizer: better, faster, older", algorithm 1) for all
// parameters, in the order of operations of the authors' code. With g' = gradient_scale g, at update t = 1, 2, ...
//
//   m1 = beta1 m1 + (1 - beta1) g'     m2 = beta3 m2 + (1 - beta3) g'     v = beta2 v + (1 - beta2) g'^2
//   p = (1 - learning_rate weight_decay) p
//       - learning_rate (m1 / (1 - beta1^t) + alpha m2) / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//
// beta3 is close to 1, so that m2 remembers thousands of gradients. Warm-ups of section 3: over alpha_warmup_steps
// updates alpha grows linearly from 0; over beta3_warmup_steps beta3 grows from beta1 so that the half-life of m2,
// log(1/2) / log(beta3) - 1 updates, grows linearly.

#include <cmath>

#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/kernels/optim/element_update.hpp"
#include "optim/element_optimizer.hpp"
#include "optim/optimizers.hpp"

namespace nanotron::optim {

template <class M>
struct AdemamixRule {
  static constexpr int states = 3;
  M keep, beta1, rest1, correction1, beta2, rest2, root2, beta3, rest3, alpha, eps, rate;

  NANOTRON_FUNCTION M operator()(M p, M g, M (&s)[states]) const {
    s[0] = beta1 * s[0] + rest1 * g;
    s[1] = beta3 * s[1] + rest3 * g;
    s[2] = beta2 * s[2] + rest2 * (g * g);
    return p * keep - rate * ((s[0] / correction1 + alpha * s[1]) / (std::sqrt(s[2]) / root2 + eps));
  }
};

namespace {

// From `begin` to `end` over `steps` updates, at update t.
double linear(double begin, double end, std::int64_t steps, std::int64_t t) {
  if (t >= steps) return end;
  const double a = static_cast<double>(t) / static_cast<double>(steps);
  return (1.0 - a) * begin + a * end;
}

double beta_at(double begin, double end, std::int64_t steps, std::int64_t t) {
  if (t >= steps) return end;
  const auto half_life = [](double beta) { return logarithm(0.5) / logarithm(beta + 1e-8) - 1.0; };
  return power(0.5, 1.0 / (linear(half_life(begin), half_life(end), steps, t) + 1.0));
}

template <class M>
class Ademamix final : public ElementOptimizer<M> {
 public:
  Ademamix(const deck::Config& config, const OptimizerSetup& setup, Arena& arena)
      : ElementOptimizer<M>({"exp_avg_fast", "exp_avg_slow", "exp_avg_sq"}, config, setup, arena) {}
  std::string name() const override { return "ademamix"; }

 private:
  void update_part(Device& device, const kernels::UpdateOperands<M>& operands, const PartRate& rate) override {
    const deck::OptimizerConfig& c = this->config();
    const double beta3 = beta_at(c.beta1, c.beta3, c.beta3_warmup_steps, operands.update);
    const auto t = static_cast<double>(operands.update);
    const AdemamixRule<M> rule{
        .keep = static_cast<M>(1.0 - rate.learning_rate * rate.weight_decay),
        .beta1 = static_cast<M>(c.beta1),
        .rest1 = static_cast<M>(1.0 - c.beta1),
        .correction1 = static_cast<M>(1.0 - power(c.beta1, t)),
        .beta2 = static_cast<M>(c.beta2),
        .rest2 = static_cast<M>(1.0 - c.beta2),
        .root2 = static_cast<M>(std::sqrt(1.0 - power(c.beta2, t))),
        .beta3 = static_cast<M>(beta3),
        .rest3 = static_cast<M>(1.0 - beta3),
        .alpha = static_cast<M>(linear(0.0, c.alpha, c.alpha_warmup_steps, operands.update)),
        .eps = static_cast<M>(c.eps),
        .rate = static_cast<M>(rate.learning_rate),
    };
    kernels::update_elements(device, "ademamix", operands, rule);
  }
};

}  // namespace

OptimizerKind ademamix() {
  OptimizerKind kind = kind_of<Ademamix>("ademamix");
  kind.keys = {"optimizer.beta3", "optimizer.alpha", "optimizer.beta3_warmup_steps", "optimizer.alpha_warmup_steps"};
  return kind;
}

}  // namespace nanotron::optim
