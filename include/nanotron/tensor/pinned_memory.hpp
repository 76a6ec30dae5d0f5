#pragma once

// Host memory that a GPU copies to and from while the host continues (page-locked); in a host build plain memory.

#include <cstddef>
#include <span>

namespace nanotron {

class PinnedMemory {
 public:
  /// Uninitialised. Error(system_error) where memory does not suffice.
  explicit PinnedMemory(std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

/// n elements of a trivial T, zeros.
template <class T>
class PinnedArray {
 public:
  explicit PinnedArray(std::size_t n) : memory_(n * sizeof(T)), span_(reinterpret_cast<T*>(memory_.data()), n) {
    for (T& x : span_) x = T{};
  }
  std::span<T> span() const { return span_; }

 private:
  PinnedMemory memory_;
  std::span<T> span_;
};

}  // namespace nanotron
