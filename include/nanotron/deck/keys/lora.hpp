#pragma once
// &lora of the deck: adapters of low rank beside frozen weights (Hu et al. 2021).

#include <cstdint>
#include <string>

namespace nanotron::deck {

struct LoraConfig {
  std::int64_t rank = 0;  // 0: no adapters
  double alpha = 16.0;
  std::string targets = "*_proj";  // patterns of names of parameters
  std::string base{};              // a checkpoint with the frozen weights
};

}  // namespace nanotron::deck
