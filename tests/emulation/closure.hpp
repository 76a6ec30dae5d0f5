#pragma once

// The closure of a kernel, as a GPU sees it: bytes that are copied to the device. A pointer to the host's memory in
// them is a fault at launch, whether the kernel follows it or not.

#include <cstddef>
#include <string>

#include "emulation/device_memory.hpp"

namespace nanotron::emulation {

/// Ends the process if one of the closure's words is the address of mapped memory that is neither the device's nor
/// pinned. Padding has to be zero.
void require_device_addresses(const void* closure, std::size_t bytes, const std::string& kernel);

/// For the control block of a view of device memory: a closure that captures the view has its address.
template <class T>
struct PinnedAllocator {
  using value_type = T;
  PinnedAllocator() = default;
  template <class U>
  PinnedAllocator(const PinnedAllocator<U>&) {}  // NOLINT
  T* allocate(std::size_t n) { return static_cast<T*>(allocate_pinned(n * sizeof(T))); }
  void deallocate(T* memory, std::size_t) { free_pinned(memory); }
  friend bool operator==(const PinnedAllocator&, const PinnedAllocator&) { return true; }
};

template <class F>
void check_closure(const std::string& kernel, const F& f) {
  F copy = f;
  __builtin_clear_padding(&copy);
  require_device_addresses(&copy, sizeof copy, kernel);
}

}  // namespace nanotron::emulation
