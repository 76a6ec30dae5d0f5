#pragma once

// What only newer versions of NCCL have: windows of symmetric memory (2.27), collectives by copy engines (2.28), counts
// of memory (2.29.7). Where the headers of the build or the library are older: Error(deck_error), and no count.

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace nanotron::comm {

#if NCCL_VERSION_CODE >= 22700
using NcclWindow = ncclWindow_t;
#else
using NcclWindow = void*;
#endif

/// Collective over the communicator, each rank with as many bytes, from ncclMemAlloc. Null where NCCL has no use for
/// it.
NcclWindow register_window(ncclComm_t comm, std::span<std::byte> memory);
/// Not collective. No operation of the communicator runs.
void deregister_window(ncclComm_t comm, NcclWindow window);

/// Collectives of windows take no thread blocks where NCCL can do without.
void use_copy_engines(ncclConfig_t& config);

/// Bytes of GPU memory that the communicator has allocated; 0 where the library cannot tell.
std::uint64_t bytes_of(ncclComm_t comm);

}  // namespace nanotron::comm
