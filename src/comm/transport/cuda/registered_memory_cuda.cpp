#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <exception>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/transport/registered_memory.hpp"

namespace nanotron::comm {

RegisteredMemory::RegisteredMemory(ProcessGrid& grid, std::size_t bytes, deck::MemoryRegistration how) : grid_(grid) {
  void* memory = nullptr;
  const ncclResult_t status = ncclMemAlloc(&memory, bytes);
  if (status != ncclSuccess) {
    fail(ExitCode::system_error, {.what = "NCCL cannot allocate the memory of the run",
                                  .expected = fmt::format("{} MiB on this rank", bytes >> 20),
                                  .found = ncclGetErrorString(status),
                                  .where = "parallel%register_memory",
                                  .change = "register_memory = 'none', or a run that takes less memory"});
  }
  bytes_ = {static_cast<std::byte*>(memory), bytes};
  grid_.register_memory({bytes_, how});
}

RegisteredMemory::~RegisteredMemory() {
  if (std::uncaught_exceptions() > 0) return;
  cudaDeviceSynchronize();  // ncclMemFree does not wait
  grid_.register_memory({});
  ncclMemFree(bytes_.data());
}

}  // namespace nanotron::comm
