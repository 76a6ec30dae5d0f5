// Memory of the emulated NCCL: what ncclMemAlloc gives, what a rank registers by itself, and windows. The rules of
// windows, each a fault where it is broken:
//
//   their memory is from ncclMemAlloc and begins at a multiple of 4096 bytes
//   all ranks of the communicator register one, of the same size
//   the operand of a collective that other ranks reach lies at the same offset on all of them (nccl_parts.cpp)
//   none of the communicator's operations runs when one is deregistered, which comes before the communicator's end
#include <fmt/format.h>

#include <cstdlib>
#include <map>

#include "emulation/device_memory.hpp"
#include "emulation/nccl_parts.hpp"

using namespace nanotron::emulation;

namespace {

struct Registration {
  const ncclComm* comm;
  std::byte* memory;
  std::size_t bytes;
  bool is_window;
};
std::map<const Registration*, std::unique_ptr<Registration>> registrations;
std::map<std::byte*, std::size_t> allocations;

Registration* add(const ncclComm* comm, void* memory, std::size_t bytes, bool is_window) {
  auto made = std::make_unique<Registration>(Registration{comm, static_cast<std::byte*>(memory), bytes, is_window});
  Registration* const handle = made.get();
  registrations.emplace(handle, std::move(made));
  return handle;
}

void remove(const ncclComm* comm, const void* handle, bool is_window, const char* function) {
  const auto found = registrations.find(static_cast<const Registration*>(handle));
  if (found == registrations.end() || found->second->comm != comm || found->second->is_window != is_window) {
    fault(fmt::format("{}: not registered here", function));
  }
  registrations.erase(found);
}

bool is_allocated(const std::byte* memory, std::size_t bytes) {
  for (const auto& [begin, size] : allocations) {
    if (memory >= begin && memory + bytes <= begin + size) return true;
  }
  return false;
}

}  // namespace

namespace nanotron::emulation {

std::int64_t offset_in_window(const ncclComm& comm, const void* operand) {
  const auto* const at = static_cast<const std::byte*>(operand);
  for (const auto& [handle, is] : registrations) {
    if (is->is_window && is->comm == &comm && at >= is->memory && at < is->memory + is->bytes) return at - is->memory;
  }
  return -1;
}

void require_no_window(const ncclComm& comm) {
  for (const auto& [handle, is] : registrations) {
    if (is->is_window && is->comm == &comm) fault("ncclCommDestroy: a window of " + comm.name + " is registered");
  }
}

void forget_registrations(const ncclComm& comm) {
  std::erase_if(registrations, [&](const auto& each) { return each.second->comm == &comm; });
}

}  // namespace nanotron::emulation

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const char* const pretended = std::getenv("NANOTRON_EMULATED_NCCL");
  *version = pretended == nullptr ? NCCL_VERSION_CODE : std::atoi(pretended);
  return ncclSuccess;
}

// NCCL 2.29.7 has it. Of a communicator that has connected nothing, with 24 channels or as many as are allowed
// (comm/transport/nccl_memory.hpp).
ncclResult_t ncclCommMemStats(ncclComm_t comm, int, std::uint64_t* bytes) {
  const std::uint64_t channels = comm->max_blocks == 0 ? 24 : static_cast<std::uint64_t>(comm->max_blocks);
  *bytes = (2 + 3 * channels) * (2 << 20);
  return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
  if (gpuMalloc(memory, bytes) != gpuSuccess) return ncclUnhandledCudaError;
  allocations[static_cast<std::byte*>(*memory)] = bytes;
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* memory) {
  for (const auto& [handle, is] : registrations) {
    if (is->memory == memory) fault(fmt::format("ncclMemFree: communicator {} has registered it", is->comm->name));
  }
  if (Scheduler::instance().has_work()) fault("ncclMemFree: it does not wait for the device, which has work");
  if (allocations.erase(static_cast<std::byte*>(memory)) == 0) fault("ncclMemFree: not from ncclMemAlloc");
  free_device(memory);
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, size_t bytes, void** handle) {
  require_device(memory, bytes, "ncclCommRegister");
  *handle = add(comm, memory, bytes, false);
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  remove(comm, handle, false, "ncclCommDeregister");
  return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, size_t bytes, ncclWindow_t* window, int flags) {
  if (flags != NCCL_WIN_COLL_SYMMETRIC) fault("ncclCommWindowRegister: a window that is not symmetric");
  if (!is_allocated(static_cast<std::byte*>(memory), bytes)) fault("ncclCommWindowRegister: not from ncclMemAlloc");
  if (reinterpret_cast<std::uintptr_t>(memory) % NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
    fault("ncclCommWindowRegister: not at a multiple of 4096");
  }
  const int number = comm->own().windows.load();
  if (number == max_windows) fault("more windows than the emulated NCCL follows");
  const auto bytes_of = [&](int r) { return comm->row(r).window_bytes[static_cast<std::size_t>(number)].load(); };
  comm->own().window_bytes[static_cast<std::size_t>(number)].store(bytes);
  comm->own().windows.store(number + 1);
  const auto are_here = [&] {
    for (int r = 0; r < comm->size; ++r) {
      if (comm->row(r).windows.load() <= number) return false;
    }
    return true;
  };
  Scheduler::instance().run_until(are_here, fmt::format("ncclCommWindowRegister on communicator {}", comm->name));
  for (int r = 0; r < comm->size; ++r) {
    if (bytes_of(r) != bytes) {
      fault(fmt::format("ncclCommWindowRegister: {} bytes on rank {} and {} on rank {}", bytes, world_rank(),
                        bytes_of(r), comm->row(r).world_rank.load()));
    }
  }
  *window = reinterpret_cast<ncclWindow_t>(add(comm, memory, bytes, true));
  return ncclSuccess;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  if (comm->done != comm->issued) fault("ncclCommWindowDeregister: the communicator has work");
  remove(comm, window, true, "ncclCommWindowDeregister");
  return ncclSuccess;
}

}  // extern "C"
