#pragma once

// NCCL, or RCCL for AMD GPUs, which has NCCL's names: NCCL_VERSION_CODE is the version of NCCL whose interface RCCL
// has.

#if defined(NANOTRON_WITH_HIP)
#include <rccl/rccl.h>

#define NANOTRON_NCCL_NAME "RCCL"
#elif defined(NANOTRON_WITH_CUDA)
#include <nccl.h>

#define NANOTRON_NCCL_NAME "NCCL"
#endif
