#pragma once

// Makers of the optimizers; the classes, and what they do, are in the sources.

#include <memory>

#include "nanotron/optim/optimizer.hpp"

namespace nanotron::optim {

template <class M>
std::unique_ptr<Optimizer<M>> make_muon(const deck::Config& config, const OptimizerSetup& setup, Arena& arena);

std::unique_ptr<Optimizer<float>> make_adamw_bf16_moments(const deck::Config& config, const OptimizerSetup& setup,
                                                          Arena& arena);

}  // namespace nanotron::optim
