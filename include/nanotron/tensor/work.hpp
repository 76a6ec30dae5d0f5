#pragma once

// The work of a step, counted instead of done: on a planning Device kernels only say what they would move and compute.
// From the list a roofline (Williams, Waterman and Patterson 2009) predicts the time on a named machine.

#include <cstdint>
#include <string_view>
#include <vector>

#include "nanotron/base/types.hpp"

namespace nanotron {

/// Of one call of a kernel. Bytes of device memory, once for each pass over an operand that is too large for caches.
struct Work {
  double read = 0.0;
  double written = 0.0;
  double flops = 0.0;                  // of matrix products; multiplication and addition are two
  ScalarType type = ScalarType::fp32;  // of the products' operands

  double bytes() const { return read + written; }
  bool operator==(const Work&) const = default;
};

/// Calls of one kernel with equal work.
struct WorkRow {
  std::string_view kernel;
  Work work;
  std::uint64_t calls = 0;
  std::uint64_t launches = 0;
};

class WorkList {
 public:
  /// kernel: a string literal. Launches up to close() are its own; what begins in between ends before.
  void open(std::string_view kernel, const Work& work);
  void close();
  void add_launch();
  /// A wait of the host for the device.
  void add_wait() { ++waits_; }

  const std::vector<WorkRow>& rows() const { return rows_; }
  std::uint64_t waits() const { return waits_; }

 private:
  std::vector<WorkRow> rows_;
  std::vector<std::size_t> open_;
  std::uint64_t waits_ = 0;
};

}  // namespace nanotron
