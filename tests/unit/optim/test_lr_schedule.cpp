#include "nanotron/optim/lr_schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace nanotron::optim {
namespace {

using deck::DecayShape;
using deck::ScheduleKind;

LrSchedule make(ScheduleKind kind, std::int64_t warmup, std::int64_t decay, std::int64_t steps,
                DecayShape shape = DecayShape::linear) {
  deck::ScheduleConfig c;
  c.kind = kind;
  c.warmup_steps = warmup;
  c.decay_steps = decay;
  c.min_lr_ratio = 0.1;
  c.decay_shape = shape;
  return LrSchedule(c, 2.0, steps);
}

TEST(LrSchedule, WarmsUpLinearlyToThePeakInEveryKind) {
  for (const auto kind : {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine,
                          ScheduleKind::one_minus_sqrt, ScheduleKind::wsd, ScheduleKind::inverse_sqrt}) {
    const LrSchedule lr = make(kind, 4, 0, 100);
    EXPECT_DOUBLE_EQ(lr(0), 0.5);
    EXPECT_DOUBLE_EQ(lr(1), 1.0);
    EXPECT_DOUBLE_EQ(lr(3), 2.0);
  }
}

TEST(LrSchedule, MeetsItsFormula) {
  EXPECT_DOUBLE_EQ(make(ScheduleKind::constant, 0, 0, 100)(77), 2.0);
  EXPECT_DOUBLE_EQ(make(ScheduleKind::linear, 0, 0, 100)(50), 2.0 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(make(ScheduleKind::cosine, 20, 0, 100)(60), 2.0 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(make(ScheduleKind::one_minus_sqrt, 0, 0, 100)(25), 2.0 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(make(ScheduleKind::inverse_sqrt, 16, 0, 100)(63), 2.0 * std::sqrt(16.0 / 64.0));
}

TEST(LrSchedule, StaysAtTheFloorBehindTheDecay) {
  for (const auto kind : {ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::one_minus_sqrt}) {
    const LrSchedule lr = make(kind, 5, 20, 100);
    EXPECT_NEAR(lr(25), 0.2, 1e-15);
    EXPECT_NEAR(lr(99), 0.2, 1e-15);
  }
}

TEST(LrSchedule, WsdIsStableAndThenDecays) {
  const LrSchedule lr = make(ScheduleKind::wsd, 10, 0, 100);
  EXPECT_DOUBLE_EQ(lr(10), 2.0);
  EXPECT_DOUBLE_EQ(lr(90), 2.0);
  EXPECT_DOUBLE_EQ(lr(95), 2.0 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(make(ScheduleKind::wsd, 10, 40, 100, DecayShape::one_minus_sqrt)(70),
                   2.0 * (0.1 + 0.9 * (1 - std::sqrt(0.25))));
}

}  // namespace
}  // namespace nanotron::optim
