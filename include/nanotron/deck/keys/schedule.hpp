#pragma once
// &schedule of the deck.

#include <cstdint>

namespace nanotron::deck {

enum class ScheduleKind { constant, linear, cosine, one_minus_sqrt, wsd, inverse_sqrt };
enum class DecayShape { linear, one_minus_sqrt, cosine };

struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::constant;
  std::int64_t warmup_steps = 0, decay_steps = 0;
  double min_lr_ratio = 0.1;
  DecayShape decay_shape = DecayShape::linear;
};

}  // namespace nanotron::deck
