// What nccl.h includes, where rccl.h includes it: the types that it uses are HIP's.
#pragma once

#include <hip/hip_runtime_api.h>
