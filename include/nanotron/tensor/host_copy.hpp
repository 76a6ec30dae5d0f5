#pragma once

// A copy of integers from the memory of kernels to the host, which continues meanwhile.

#include <cstdint>
#include <memory>
#include <span>

#include "nanotron/tensor/device.hpp"

namespace nanotron {

/// One copy at a time.
class HostCopy {
 public:
  /// n: max integers.
  explicit HostCopy(std::size_t n);
  ~HostCopy();
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  /// Copies what `from` holds after the work that is queued now.
  void start(const Device& device, Vector<const std::int64_t> from);
  /// True from start() to wait(); on the host never: start() has copied.
  bool is_running() const;
  /// Returns when the values are there, without waiting for work that was queued after start(). Error(system_error) if
  /// work before it failed.
  void wait();
  std::span<const std::int64_t> values() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nanotron
