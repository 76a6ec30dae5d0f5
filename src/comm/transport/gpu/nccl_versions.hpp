#pragma once

// What only newer versions of NCCL have: communicators with a share of the GPU (2.17), registered memory (2.19),
// windows of symmetric memory (2.27), collectives by copy engines (2.28), counts of memory (2.29.7). Where the headers
// of the build or the library are older: Error(deck_error), no share and no count. RCCL has the interface of 2.13 in
// ROCm 5.4, of 2.18 in 6.0 and of 2.21 in 6.3.

#include <cstddef>
#include <cstdint>
#include <span>

#include "nanotron/comm/transport/nccl_api.hpp"
#include "nanotron/deck/keys/parallel.hpp"

namespace nanotron::comm {

#if NCCL_VERSION_CODE >= 22700
using NcclWindow = ncclWindow_t;
#else
using NcclWindow = void*;
#endif

inline bool is_in_progress([[maybe_unused]] ncclResult_t status) {
#if NCCL_VERSION_CODE >= 21400
  return status == ncclInProgress;
#else
  return false;
#endif
}

/// What the operations of a communicator take of a GPU. message_blocks: as Group::limit_message_blocks.
struct NcclResources {
  int message_blocks = 0;
  deck::CollectiveEngine engine = deck::CollectiveEngine::blocks;
};

/// Collective over the `size` ranks that share the id.
ncclComm_t make_communicator(const ncclUniqueId& id, int size, int rank, const NcclResources& resources);

/// Memory of the GPU that can be registered. Null where there is not as much; freed by free_memory.
ncclResult_t allocate_memory(void** memory, std::size_t bytes);
void free_memory(void* memory);
/// Not collective. Null where NCCL has no use for it.
void* register_memory(ncclComm_t comm, std::span<std::byte> memory);
void deregister_memory(ncclComm_t comm, void* registration);

/// Collective over the communicator, each rank with as many bytes, from ncclMemAlloc. Null where NCCL has no use for
/// it.
NcclWindow register_window(ncclComm_t comm, std::span<std::byte> memory);
/// Not collective. No operation of the communicator runs.
void deregister_window(ncclComm_t comm, NcclWindow window);

/// Bytes of GPU memory that the communicator has allocated; 0 where the library cannot tell.
std::uint64_t bytes_of(ncclComm_t comm);

}  // namespace nanotron::comm
