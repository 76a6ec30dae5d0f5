#pragma once

// Memory of the emulated GPU: pages that the host can reach only while queued work runs. Pinned host memory is known by
// its range, so that asynchronous copies of it are asynchronous here too.

#include <cstddef>

namespace nanotron::emulation {

void* allocate_device(std::size_t bytes);
void free_device(void* memory);
bool is_device(const void* memory);
/// Ends the process unless [memory, memory + bytes) lies in one allocation of the device.
void require_device(const void* memory, std::size_t bytes, const char* what);

void* allocate_pinned(std::size_t bytes);
void free_pinned(void* memory);
bool is_pinned(const void* memory);

/// While one exists, the host can reach the device's memory. For queued work only.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace nanotron::emulation
