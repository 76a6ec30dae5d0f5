#pragma once
// &optimizer of the deck.

#include <cstdint>
#include <string>

namespace nanotron::deck {

enum class StateMemory { device, host };

struct OptimizerConfig {
  std::string name = "adamw";  // of a row in optim/optimizers.hpp
  double learning_rate = 3e-4;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double momentum = 0.95;                // with muon
  std::int64_t newton_schulz_steps = 5;  // with muon
  double qk_clip = 0.0;                  // 0: none
  double beta3 = 0.9999, alpha = 8.0;    // with ademamix, as the next two
  std::int64_t beta3_warmup_steps = 0, alpha_warmup_steps = 0;
  std::int64_t precondition_every = 10, max_precondition_size = 10000;  // with soap
  double rho = 0.04;                                                    // with sophia, as the next one
  std::int64_t hessian_every = 10;
  double weight_decay = 0.1;
  std::string no_weight_decay{};  // patterns of names
  double z_loss_coefficient = 0.0;
  double mtp_loss_coefficient = 0.3;
  double ema_decay = 0.0;  // of an average of the weights; 0: none
  double clip_grad_norm = 1.0;
  StateMemory state_memory = StateMemory::device;
};

}  // namespace nanotron::deck
