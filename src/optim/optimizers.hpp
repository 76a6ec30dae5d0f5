#pragma once

// The table of optimizers: each is a folder here whose source ends with a function that returns its row.

#include <memory>
#include <string>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/keys/optimizer.hpp"
#include "nanotron/optim/optimizer.hpp"

namespace nanotron::optim {

/// config is resolved; states start at zero.
template <class M>
using MakeOptimizer = std::unique_ptr<Optimizer<M>> (*)(const deck::Config& config, const OptimizerSetup& setup,
                                                        Arena& arena);

struct OptimizerKind {
  std::string name;  // of the deck
  MakeOptimizer<double> in_fp64;
  MakeOptimizer<float> in_fp32;
  bool has_bf16_states = true;                                    // precision%moments = 'bf16'
  bool has_host_states = true;                                    // optimizer%state_memory = 'host'
  bool derives_weights = false;                                   // from states: other changes of them are lost
  std::vector<const char*> keys{};                                // of the deck, without effect for other optimizers
  void (*check)(const deck::Config&, deck::Findings&) = nullptr;  // of decks that choose it

  template <class M>
  MakeOptimizer<M> maker() const {
    if constexpr (std::is_same_v<M, double>)
      return in_fp64;
    else
      return in_fp32;
  }
};

/// Of a class whose constructor takes the arguments of MakeOptimizer.
template <template <class> class Class>
OptimizerKind kind_of(std::string name) {
  return {std::move(name),
          [](const deck::Config& config, const OptimizerSetup& setup, Arena& arena) {
            return std::unique_ptr<Optimizer<double>>(std::make_unique<Class<double>>(config, setup, arena));
          },
          [](const deck::Config& config, const OptimizerSetup& setup, Arena& arena) {
            return std::unique_ptr<Optimizer<float>>(std::make_unique<Class<float>>(config, setup, arena));
          }};
}

OptimizerKind adamw(), muon(), ademamix(), lion(), schedule_free_adamw(), sophia(), soap();

inline std::vector<OptimizerKind> optimizer_kinds() {
  return {adamw(), muon(), ademamix(), lion(), schedule_free_adamw(), sophia(), soap()};
}

/// AdamW of the parameters in setup.layouts.moments. over: which tensors these belong to.
template <class M>
std::unique_ptr<Optimizer<M>> make_adamw(const deck::Config& config, const OptimizerSetup& setup, Arena& arena,
                                         Covers over);

/// The table with ParameterSpec::decays as the patterns of optimizer%no_weight_decay say (weight_decay.cpp).
model::ParameterTable with_weight_decay(model::ParameterTable table, const std::string& patterns);
/// Reports patterns that fit no parameter of the model.
void check_weight_decay(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::optim
