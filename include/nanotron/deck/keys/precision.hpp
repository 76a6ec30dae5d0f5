#pragma once
// &precision of the deck.

#include <cstdint>

#include "nanotron/base/types.hpp"

namespace nanotron::deck {

enum class Reproducible { none, run, layout };
enum class MomentType { master, bf16 };
enum class Fp8Scales { rows, blocks };

struct PrecisionConfig {
  ScalarType compute = ScalarType::fp32;
  Fp8Scales fp8_scales = Fp8Scales::rows;
  bool fp8_experts = false;
  MomentType moments = MomentType::master;
  Reproducible reproducible = Reproducible::none;
  // With 'layout': number of partial sums on every grid; 0: resolve() chooses.
  std::int64_t tensor_shards = 0;
  std::int64_t context_shards = 1;
  std::int64_t batch_shards = 0;
};

}  // namespace nanotron::deck
