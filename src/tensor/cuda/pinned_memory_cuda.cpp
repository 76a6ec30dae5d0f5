#include <cuda_runtime_api.h>

#include "nanotron/base/error.hpp"
#include "nanotron/tensor/pinned_memory.hpp"

namespace nanotron {

PinnedMemory::PinnedMemory(std::size_t bytes) {
  if (bytes == 0) return;
  void* memory = nullptr;
  NANOTRON_CHECK_CUDA(cudaMallocHost(&memory, bytes));
  data_ = static_cast<std::byte*>(memory);
}
PinnedMemory::~PinnedMemory() { cudaFreeHost(data_); }

}  // namespace nanotron
