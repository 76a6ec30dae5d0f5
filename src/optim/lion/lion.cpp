// Lion (Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2) for all parameters, in the
// order of operations of the authors' code. With g' = gradient_scale g:
//
//   p = (1 - learning_rate weight_decay) p - learning_rate sign(beta1 m + (1 - beta1) g')        sign(0) = 0
//   m = beta2 m + (1 - beta2) g'

#include "nanotron/kernels/optim/element_update.hpp"
#include "optim/element_optimizer.hpp"
#include "optim/optimizers.hpp"

namespace nanotron::optim {

template <class M>
struct LionRule {
  static constexpr int states = 1;
  M keep, beta1, rest1, beta2, rest2, rate;

  NANOTRON_FUNCTION M operator()(M p, M g, M (&s)[states]) const {
    const M direction = beta1 * s[0] + rest1 * g;
    const M sign = direction > M(0) ? M(1) : direction < M(0) ? M(-1) : M(0);
    s[0] = beta2 * s[0] + rest2 * g;
    return p * keep - rate * sign;
  }
};

namespace {

template <class M>
class Lion final : public ElementOptimizer<M> {
 public:
  Lion(const deck::Config& config, const OptimizerSetup& setup, Arena& arena)
      : ElementOptimizer<M>({"exp_avg"}, config, setup, arena) {}
  std::string name() const override { return "lion"; }

 private:
  void update_part(Device& device, const kernels::UpdateOperands<M>& operands, const PartRate& rate) override {
    const deck::OptimizerConfig& c = this->config();
    const LionRule<M> rule{.keep = static_cast<M>(1.0 - rate.learning_rate * rate.weight_decay),
                           .beta1 = static_cast<M>(c.beta1),
                           .rest1 = static_cast<M>(1.0 - c.beta1),
                           .beta2 = static_cast<M>(c.beta2),
                           .rest2 = static_cast<M>(1.0 - c.beta2),
                           .rate = static_cast<M>(rate.learning_rate)};
    kernels::update_elements(device, "lion", operands, rule);
  }
};

}  // namespace

OptimizerKind lion() {
  OptimizerKind kind = kind_of<Lion>("lion");
  kind.check = [](const deck::Config& c, deck::Findings& f) {
    deck::refuse_unused(c, {"optimizer.eps"}, "optimizers with a second moment", "its default with name = 'lion'", f);
  };
  return kind;
}

}  // namespace nanotron::optim
