#include "emulation/closure.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "emulation/scheduler.hpp"

namespace nanotron::emulation {
namespace {

// Programs, heaps and stacks lie above the first 4 GiB and in the lower half of 48 bits.
bool may_be_address(std::uintptr_t word) { return word >> 32 != 0 && word >> 47 == 0; }

bool is_mapped(std::uintptr_t word) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  return msync(reinterpret_cast<void*>(word / page * page), page, MS_ASYNC) == 0;
}

// Also the end of an allocation.
bool is_reachable(std::uintptr_t word) {
  const auto* const memory = reinterpret_cast<const std::byte*>(word);
  return is_device(memory) || is_device(memory - 1) || is_pinned(memory) || is_pinned(memory - 1);
}

}  // namespace

void require_device_addresses(const void* closure, std::size_t bytes, const std::string& kernel) {
  for (std::size_t at = 0; at + sizeof(std::uintptr_t) <= bytes; at += sizeof(std::uintptr_t)) {
    std::uintptr_t word = 0;
    std::memcpy(&word, static_cast<const std::byte*>(closure) + at, sizeof word);
    if (may_be_address(word) && !is_reachable(word) && is_mapped(word)) {
      fault(fmt::format("the kernel '{}' captures an address of the host, {:#x}, at byte {} of {}", kernel, word, at,
                        bytes));
    }
  }
}

}  // namespace nanotron::emulation
