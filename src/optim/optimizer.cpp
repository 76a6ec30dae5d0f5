#include "nanotron/optim/optimizer.hpp"

#include <memory>

#include "adamw.hpp"
#include "nanotron/deck/config.hpp"
#include "optimizers.hpp"

namespace nanotron::optim {

template <class M>
std::unique_ptr<Optimizer<M>> make_optimizer(const deck::Config& config, const OptimizerSetup& setup, Arena& arena) {
  switch (config.optimizer.name) {
    case deck::OptimizerName::muon:
      return make_muon<M>(config, setup, arena);
    case deck::OptimizerName::adamw:
      break;
  }
  if constexpr (std::is_same_v<M, float>) {
    if (config.precision.moments == deck::MomentType::bf16) {
      return make_adamw_bf16_moments(config, setup, arena);
    }
  }
  return std::make_unique<Adamw<M>>(config.optimizer, setup.table, setup.layouts, Covers::all, arena);
}

#define NANOTRON_INSTANTIATE(M) \
  template std::unique_ptr<Optimizer<M>> make_optimizer(const deck::Config&, const OptimizerSetup&, Arena&);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::optim
