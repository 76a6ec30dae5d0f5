// ranks: 1
#include <gtest/gtest.h>

#include <csignal>

#include "nanotron/base/stop_signals.hpp"

namespace nanotron {
namespace {

TEST(StopSignals, WaitUntilTheyAreAskedFor) {
  hold_stop_signals();
  EXPECT_FALSE(stop_signal_came());
  for (const int number : {SIGUSR1, SIGTERM, SIGTERM, SIGINT, SIGUSR2}) raise(number);
  EXPECT_TRUE(stop_signal_came());
  EXPECT_TRUE(stop_signal_came()) << "once it has come it stays so";
}

}  // namespace
}  // namespace nanotron
