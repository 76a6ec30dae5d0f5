#pragma once

// CUDA errors that a later call reports, perhaps instead of its own. Does nothing in a build for CPUs.

#ifdef NANOTRON_WITH_CUDA
#include <cuda_runtime_api.h>

#include "nanotron/base/error.hpp"

namespace nanotron {

/// Error(system_error) if a launch since the last call failed: Kokkos reports that in debug builds only.
inline void require_launched() { NANOTRON_CHECK_CUDA(cudaGetLastError()); }

/// Whether the work before the event is done. Error(system_error) if that work failed, or as require_launched(): the
/// answer "not yet" counts as CUDA's last error and would hide an earlier one.
inline bool is_passed(cudaEvent_t event) {
  require_launched();
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  NANOTRON_CHECK_CUDA(status);
  return true;
}

}  // namespace nanotron

#else

namespace nanotron {
inline void require_launched() {}
}  // namespace nanotron

#endif
