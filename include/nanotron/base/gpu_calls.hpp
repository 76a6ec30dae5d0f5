#pragma once

// Errors of the GPU's runtime that a later call reports, perhaps instead of its own. Does nothing in a build for CPUs.

#ifdef NANOTRON_WITH_GPU

#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"

namespace nanotron {

/// Error(system_error) if a launch since the last call failed: Kokkos reports that in debug builds only.
inline void require_launched() { NANOTRON_CHECK_GPU(gpuGetLastError()); }

/// Whether the work before the event is done. Error(system_error) if that work failed, or as require_launched(): the
/// answer "not yet" counts as the runtime's last error and would hide an earlier one.
inline bool is_passed(gpuEvent_t event) {
  require_launched();
  const gpuError_t status = gpuEventQuery(event);
  if (status == gpuErrorNotReady) {
    static_cast<void>(gpuGetLastError());
    return false;
  }
  NANOTRON_CHECK_GPU(status);
  return true;
}

}  // namespace nanotron

#else

namespace nanotron {
inline void require_launched() {}
}  // namespace nanotron

#endif
