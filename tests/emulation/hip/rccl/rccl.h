#pragma once

// RCCL's header, for the emulated GPU: that of NCCL, whose names and types RCCL has (src/nccl.h.in of RCCL 2.21.5),
// with HIP's streams. What NCCL got later, as windows, is not RCCL's: its version says so.

#include <hip/hip_runtime_api.h>

#define cudaStream_t hipStream_t
#include <nccl.h>
#undef cudaStream_t

#undef NCCL_VERSION_CODE
#define NCCL_VERSION_CODE 22105
