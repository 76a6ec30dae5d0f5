#pragma once

#include <nccl.h>

#include <cstdint>

namespace nanotron::comm {

/// Bytes of GPU memory that the communicator has allocated; 0 where the library cannot tell, as before NCCL 2.29.7.
std::uint64_t bytes_of(ncclComm_t comm);

}  // namespace nanotron::comm
