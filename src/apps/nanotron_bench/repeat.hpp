#pragma once

// Repeated measurements and their statistics.

#include <algorithm>
#include <vector>

#include "nanotron/base/timer.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::apps::bench {

struct Spread {
  double median = 0.0, min = 0.0, max = 0.0;
};

inline Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  const double median = n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
  return {median, values.front(), values.back()};
}

// Seconds of one call of work(), which may be asynchronous on the device. Repeats it for about
// `budget` seconds, in at least three batches that are long enough for the clock. All ranks begin
// together; the counts are the same on every rank, so work may be collective.
template <class Work>
Spread seconds_of(Device& device, comm::Group& world, double budget, Work&& work) {
  const auto batch_seconds = [&](std::int64_t calls) {
    device.fence();
    const double begin = wall_seconds();
    for (std::int64_t i = 0; i < calls; ++i) work();
    device.fence();
    return wall_seconds() - begin;
  };
  comm::barrier(world);
  batch_seconds(1);
  const double once = std::max(comm::max(world, std::min(batch_seconds(1), batch_seconds(1))), 1e-8);
  constexpr double min_batch = 2e-3;
  const auto calls = static_cast<std::int64_t>(std::max(1.0, min_batch / once));
  const double batches = std::clamp(budget / (once * static_cast<double>(calls)), 3.0, 200.0);
  std::vector<double> seconds;
  comm::barrier(world);
  for (int b = 0; b < static_cast<int>(batches); ++b) {
    seconds.push_back(batch_seconds(calls) / static_cast<double>(calls));
  }
  return spread_of(std::move(seconds));
}

}  // namespace nanotron::apps::bench
