#include <nccl.h>

#include "nanotron/comm/device_memory.hpp"

namespace nanotron::comm {

std::byte* allocate_device_memory(std::size_t bytes) {
  void* memory = nullptr;
  return ncclMemAlloc(&memory, bytes) == ncclSuccess ? static_cast<std::byte*>(memory) : nullptr;
}

void free_device_memory(std::byte* memory) {
  if (memory != nullptr) ncclMemFree(memory);
}

}  // namespace nanotron::comm
