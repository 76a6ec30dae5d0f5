#pragma once

// The same run under several orders of a GPU's streams; on a CPU, where there is one order, once.

#include <gtest/gtest.h>

#ifdef NANOTRON_EMULATED_GPU
#include "emulation/scheduler.hpp"
#endif

namespace nanotron::test {

#ifdef NANOTRON_EMULATED_GPU
inline constexpr std::uint64_t legal_orders = 20;

template <class Run>
void in_legal_orders(const Run& run) {
  emulation::Scheduler& scheduler = emulation::Scheduler::instance();
  const std::uint64_t seed = scheduler.seed();
  for (std::uint64_t order = seed; order < seed + legal_orders; ++order) {
    scheduler.reseed(order);
    SCOPED_TRACE(testing::Message() << "NANOTRON_EMULATION_SEED=" << order);
    run();
    if (testing::Test::HasFailure()) break;
  }
  scheduler.reseed(seed);
}
#else
inline constexpr int legal_orders = 1;

template <class Run>
void in_legal_orders(const Run& run) {
  run();
}
#endif

}  // namespace nanotron::test
