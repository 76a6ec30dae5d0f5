#include "emulation/device_memory.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>

#include "emulation/scheduler.hpp"

namespace nanotron::emulation {
namespace {

// Sizes by address.
using Ranges = std::map<std::uintptr_t, std::size_t>;
Ranges device, pinned;
int accesses = 0;

Ranges::const_iterator find(const Ranges& ranges, const void* memory) {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  auto next = ranges.upper_bound(at);
  if (next == ranges.begin()) return ranges.end();
  --next;
  return at < next->first + next->second ? next : ranges.end();
}

constexpr std::size_t huge_page = std::size_t{2} << 20;

// Large allocations have huge pages: their rights change 512 times as fast.
std::size_t whole_pages(std::size_t bytes) {
  const std::size_t page = bytes < huge_page ? static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) : huge_page;
  return (bytes + page - 1) / page * page;
}

// Of whole pages, at a multiple of them.
void* map_pages(std::size_t bytes) {
  const std::size_t size = whole_pages(bytes), more = bytes < huge_page ? 0 : huge_page;
  void* const all = mmap(nullptr, size + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  if (more == 0) return all;
  const auto from = reinterpret_cast<std::uintptr_t>(all), to = (from + more - 1) / more * more;
  void* const memory = reinterpret_cast<void*>(to);
  if (to > from) munmap(all, to - from);
  if (from + more > to) munmap(reinterpret_cast<void*>(to + size), from + more - to);
  madvise(memory, size, MADV_HUGEPAGE);
  return memory;
}

// A protection key, whose rights change by one instruction; -1 where the processor has none.
int device_key() {
  static const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  return key;
}

void protect(int flags) {
  if (device_key() >= 0) {
    pkey_set(device_key(), flags == PROT_NONE ? PKEY_DISABLE_ACCESS : 0);
  } else {
    for (const auto& [at, bytes] : device) mprotect(reinterpret_cast<void*>(at), whole_pages(bytes), flags);
  }
}

void on_segmentation_fault(int, siginfo_t* info, void*) {
  if (is_device(info->si_addr)) {
    const auto range = find(device, info->si_addr);
    fault(fmt::format("the host reaches for device memory: byte {} of an allocation of {}",
                      reinterpret_cast<std::uintptr_t>(info->si_addr) - range->first, range->second));
  }
  signal(SIGSEGV, SIG_DFL);
}

void watch_for_host_access() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_segmentation_fault;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGSEGV, &action, nullptr) == 0;
  }();
  static_cast<void>(installed);
}

}  // namespace

void* allocate_device(std::size_t bytes) {
  watch_for_host_access();
  if (bytes == 0) return nullptr;
  void* const memory = map_pages(bytes);
  if (memory == nullptr) return nullptr;
  if (device_key() >= 0) pkey_mprotect(memory, whole_pages(bytes), PROT_READ | PROT_WRITE, device_key());
  device.emplace(reinterpret_cast<std::uintptr_t>(memory), bytes);
  const DeviceAccess access;
  std::memset(memory, 0xff, bytes);  // NaN in every type: new memory has no value
  return memory;
}

void free_device(void* memory) {
  if (memory == nullptr) return;
  const auto range = device.find(reinterpret_cast<std::uintptr_t>(memory));
  if (range == device.end()) fault("gpuFree of what is not an allocation");
  munmap(memory, whole_pages(range->second));
  device.erase(range);
}

bool is_device(const void* memory) { return find(device, memory) != device.end(); }

void require_device(const void* memory, std::size_t bytes, const char* what) {
  if (bytes == 0) return;
  const auto range = find(device, memory);
  if (range == device.end()) fault(fmt::format("{} is given host memory", what));
  if (reinterpret_cast<std::uintptr_t>(memory) + bytes > range->first + range->second) {
    fault(fmt::format("{} is given {} bytes, {} of them past the end of an allocation", what, bytes,
                      reinterpret_cast<std::uintptr_t>(memory) + bytes - range->first - range->second));
  }
}

void* allocate_pinned(std::size_t bytes) {
  void* const memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory != nullptr) pinned.emplace(reinterpret_cast<std::uintptr_t>(memory), bytes);
  return memory;
}

void free_pinned(void* memory) {
  if (memory != nullptr && pinned.erase(reinterpret_cast<std::uintptr_t>(memory)) == 0) {
    fault("gpuFreeHost of what is not pinned");
  }
  std::free(memory);
}

bool is_pinned(const void* memory) { return find(pinned, memory) != pinned.end(); }

DeviceAccess::DeviceAccess() {
  if (accesses++ == 0) protect(PROT_READ | PROT_WRITE);
}
DeviceAccess::~DeviceAccess() {
  if (--accesses == 0) protect(PROT_NONE);
}

}  // namespace nanotron::emulation
