#pragma once

// Copies between memory of the device and page-locked host memory that run beside kernels: on a GPU each direction has
// a stream of its own, so both directions of the link are used at once.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "nanotron/tensor/device.hpp"

namespace nanotron {

class HostTransfers {
 public:
  using Ticket = std::uint64_t;

  HostTransfers();
  ~HostTransfers();
  HostTransfers(const HostTransfers&) = delete;
  HostTransfers& operator=(const HostTransfers&) = delete;

  /// Copies `bytes` after what is queued on the device's stream so far. Both memories belong to the copy until wait().
  Ticket to_host(Device& device, const std::byte* from, std::byte* to, std::size_t bytes);
  Ticket to_device(Device& device, const std::byte* from, std::byte* to, std::size_t bytes);
  /// The same into memory that a copy to the host still reads: it begins after that one. Instead of wait() for
  /// that one.
  Ticket to_device_after(Ticket copy, Device& device, const std::byte* from, std::byte* to, std::size_t bytes);

  /// What is queued on the device's stream from now on runs after the copy. Once for each ticket, in any order.
  void wait(Device& device, Ticket ticket);

 private:
  struct Streams;  // of a GPU
  std::unique_ptr<Streams> streams_;
};

}  // namespace nanotron
