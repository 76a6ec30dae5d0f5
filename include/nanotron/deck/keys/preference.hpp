#pragma once
// &preference of the deck: training on pairs of a chosen and a rejected answer (DPO, Rafailov et al. 2023).

#include <string>

namespace nanotron::deck {

struct PreferenceConfig {
  double beta = 0.0;        // 0: no pairs
  std::string reference{};  // a file of log-probabilities of the reference model; empty: in run%output_dir
};

}  // namespace nanotron::deck
