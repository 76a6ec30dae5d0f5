#pragma once

// Included before everything in a HIP build. <cstring> gives std the memcpy that it finds: included before HIP's header, it
// would give kernels none.

#include <hip/hip_runtime.h>

#include <cstring>
