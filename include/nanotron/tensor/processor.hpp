#pragma once

#include <type_traits>

#include "nanotron/tensor/tensor.hpp"

namespace nanotron {

/// Where kernels run. Some have another form on a GPU, with other buffers; a plan may be for either.
enum class Processor { cpu, gpu };

/// Of this build.
inline constexpr Processor built_for = std::is_same_v<MemorySpace, Kokkos::HostSpace> ? Processor::cpu : Processor::gpu;

}  // namespace nanotron
