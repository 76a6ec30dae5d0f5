#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "nanotron/base/types.hpp"

namespace nanotron::nn {

/// Loads of many dispatches: the rows that a rank received over those of an even load. Sums, so that those of ranks can
/// be added.
struct ReceivedLoads {
  static constexpr double width = 1.0 / 64;
  double dispatches = 0.0, sum = 0.0, squares = 0.0, inverse_even = 0.0;
  std::array<double, 512> histogram{};  // dispatches with a load from i width on; the last one has no end

  void add(double load, double even) {
    ++dispatches;
    sum += load;
    squares += load * load;
    inverse_even += 1.0 / even;
    ++histogram[std::min(static_cast<std::size_t>(load / width), histogram.size() - 1)];
  }
  double mean() const { return sum / dispatches; }
  /// c of nn/moe/receive_buffer.hpp, where e = ranks.
  double overdispersion(index_t ranks) const {
    const double variance = squares / dispatches - mean() * mean(),
                 of_choices = (1.0 - 1.0 / static_cast<double>(ranks)) * inverse_even / dispatches;
    return std::sqrt(std::max(variance - of_choices, 0.0));
  }
  /// A load that the share q of the dispatches does not exceed, to a bin of the histogram.
  double quantile(double q) const {
    std::size_t i = 0;
    for (double below = histogram[0]; below < q * dispatches && i + 1 < histogram.size();) below += histogram[++i];
    return static_cast<double>(i + 1) * width;
  }
};

/// Counts the rows that a rank receives in one dispatch, relative to an even load.
class ReceivedRows {
 public:
  void count(index_t rows, index_t even) {
    if (even == 0) return;
    const double load = static_cast<double>(rows) / static_cast<double>(even);
    most_ = std::max(most_, load);
    largest_ = std::max(largest_, load);
    loads_.add(load, static_cast<double>(even));
  }
  /// The largest load since the last call.
  double take() { return std::exchange(most_, 0.0); }
  /// All so far, and the largest of them.
  const ReceivedLoads& loads() const { return loads_; }
  double largest() const { return largest_; }

 private:
  double most_ = 0.0, largest_ = 0.0;
  ReceivedLoads loads_;
};

}  // namespace nanotron::nn
