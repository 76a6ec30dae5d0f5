#pragma once

#include <algorithm>
#include <utility>

#include "nanotron/base/types.hpp"

namespace nanotron::nn {

/// Counts the rows that a rank receives in one dispatch; keeps the largest number, relative to an even load.
class ReceivedRows {
 public:
  void count(index_t rows, index_t even) {
    if (even > 0) most_ = std::max(most_, static_cast<double>(rows) / static_cast<double>(even));
  }
  /// Since the last call, relative to an even load.
  double take() { return std::exchange(most_, 0.0); }

 private:
  double most_ = 0.0;
};

}  // namespace nanotron::nn
