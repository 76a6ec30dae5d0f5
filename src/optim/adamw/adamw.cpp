// AdamW (Loshchilov and Hutter 2019).

#include "nanotron/kernels/optim/adamw.hpp"

#include "optim/element_optimizer.hpp"
#include "optim/optimizers.hpp"

namespace nanotron::optim {
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
    kernels::adamw<M>(device, operands,
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

#define NANOTRON_INSTANTIATE(M) \
  template std::unique_ptr<Optimizer<M>> make_adamw(const deck::Config&, const OptimizerSetup&, Arena&, Covers);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::optim
