#include <Kokkos_Core.hpp>

#include "nanotron/comm/device_memory.hpp"

namespace nanotron::comm {

std::byte* allocate_device_memory(std::size_t bytes) {
  try {
    return static_cast<std::byte*>(Kokkos::kokkos_malloc<Kokkos::HostSpace>("nanotron::Arena", bytes));
  } catch (const std::exception&) {  // Kokkos: several types, by version
    return nullptr;
  }
}

void free_device_memory(std::byte* memory) {
  if (memory != nullptr) Kokkos::kokkos_free<Kokkos::HostSpace>(memory);
}

}  // namespace nanotron::comm
