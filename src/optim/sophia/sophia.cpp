// Sophia-G (Liu et al. 2023, "Sophia: A scalable stochastic second-order optimizer", algorithm 3 with the estimator of
// algorithm 2) for all parameters, in the order of operations of the authors' code. With g' = gradient_scale g:
//
//   p = (1 - learning_rate weight_decay) p
//   m = beta1 m + (1 - beta1) g'
//   p = p - learning_rate sign(m) min(|m| / (rho h + 1e-15), 1)
//
// and after each hessian_every-th update, the Gauss-Newton-Bartlett estimate of the diagonal of the Hessian: with G the
// gradient of the mean loss over the B targets of the same batch, at the new weights, with labels drawn from the model,
//
//   h = beta2 h + (1 - beta2) B G^2
//
// The authors' code keeps h / B, and multiplies by B in the update.

#include <cmath>

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/kernels/optim/element_update.hpp"
#include "nanotron/nn/vocab/vocab_loss.hpp"
#include "optim/element_optimizer.hpp"
#include "optim/optimizers.hpp"

namespace nanotron::optim {

template <class M>
struct SophiaRule {
  static constexpr int states = 2;  // m, h
  M keep, beta1, rest1, rho, rate;

  NANOTRON_FUNCTION M operator()(M p, M g, M (&s)[states]) const {
    s[0] = beta1 * s[0] + rest1 * g;
    const M size = s[0] < M(0) ? -s[0] : s[0];
    const M ratio = size / (rho * s[1] + M(1e-15));
    const M step = ratio < M(1) ? ratio : M(1);
    const M change = s[0] < M(0) ? -step : s[0] > M(0) ? step : M(0);
    return std::fma(p, keep, -rate * change);  // rounded alike in a loop that is vectorised and in its last elements
  }
};

template <class M>
struct CurvatureRule {
  static constexpr int states = 2;
  M beta2, rest2;  // rest2: times B

  NANOTRON_FUNCTION M operator()(M p, M g, M (&s)[states]) const {
    s[1] = beta2 * s[1] + rest2 * (g * g);
    return p;
  }
};

namespace {

template <class M>
class Sophia final : public ElementOptimizer<M> {
 public:
  Sophia(const deck::Config& config, const OptimizerSetup& setup, Arena& arena)
      : ElementOptimizer<M>({"exp_avg", "hessian"}, config, setup, arena) {}
  std::string name() const override { return "sophia"; }

  bool wants_curvature() const override { return this->steps() % this->config().hessian_every == 0; }
  void update_curvature(Device& device, const UpdatedWeights<M>& weights, Vector<const M> gradient, double targets,
                        Vector<const kernels::UpdateScalars> scalars) override {
    const CurvatureRule<M> rule{.beta2 = static_cast<M>(this->config().beta2),
                                .rest2 = static_cast<M>((1.0 - this->config().beta2) * targets)};
    this->for_each_operand(device, weights, gradient, scalars,
                           [&](const kernels::UpdateOperands<M>& operands, const UpdatePart&) {
                             kernels::update_elements(device, "curvature", operands, rule);
                           });
  }

 private:
  void update_part(Device& device, const kernels::UpdateOperands<M>& operands, const PartRate& rate) override {
    const deck::OptimizerConfig& c = this->config();
    const SophiaRule<M> rule{.keep = static_cast<M>(1.0 - rate.learning_rate * rate.weight_decay),
                             .beta1 = static_cast<M>(c.beta1),
                             .rest1 = static_cast<M>(1.0 - c.beta1),
                             .rho = static_cast<M>(c.rho),
                             .rate = static_cast<M>(rate.learning_rate)};
    kernels::update_elements(device, "sophia", operands, rule);
  }
};

void check_sophia(const deck::Config& c, deck::Findings& f) {
  deck::refuse_unused(c, {"optimizer.eps"}, "optimizers that divide by it", "its default with name = 'sophia'", f);
  if (nn::objective_of(c).of_sequences && f.is_valid({"optimizer.name"}))
    f.error({"optimizer.name"},
            "Sophia estimates the curvature of a loss of tokens, and training on pairs minimises one of answers",
            "name = 'adamw'");
  if (deck::appended_layers(c.model) > 0 && f.is_valid({"optimizer.name"}))
    f.error({"optimizer.name"},
            "Sophia estimates the curvature of the loss of the next token alone, and layers that "
            "predict later tokens have others",
            "name = 'adamw'");
  if (c.parallel.compression != deck::Compression::none && f.is_valid({"optimizer.name", "parallel.compression"}))
    f.error(
        {"optimizer.name", "parallel.compression"},
        "Sophia squares a second gradient of a step, which has to be a whole one: its compression would also change "
        "what is carried to the gradient of the next step",
        "compression = 'none', or name = 'adamw'");
}

}  // namespace

OptimizerKind sophia() {
  OptimizerKind kind = kind_of<Sophia>("sophia");
  kind.keys = {"optimizer.rho", "optimizer.hessian_every"};
  kind.check = check_sophia;
  return kind;
}

}  // namespace nanotron::optim
