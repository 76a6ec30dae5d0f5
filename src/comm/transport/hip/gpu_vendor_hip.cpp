#include <cstdlib>

#include "comm/transport/device_transport.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"

namespace nanotron::comm::detail {

// The PCI address: RCCL refuses two ranks whose GPUs have the same (src/init.cc of 2.21.5, "Duplicate GPU detected").
std::string gpu_identity() {
  int device = 0;
  NANOTRON_CHECK_GPU(gpuGetDevice(&device));
  std::string bus(32, '\0');
  NANOTRON_CHECK_GPU(gpuDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device));
  return bus;
}

void prepare_environment() {
  // HIP maps streams to 4 hardware queues unless told otherwise (rocclr/device/rocm/rocdevice.cpp of 6.3,
  // getQueueFromPool); a stream that waits holds up those that share its queue, and a rank of a ring has more.
  setenv("GPU_MAX_HW_QUEUES", "24", 0);
}

// RCCL has no sums in switches; rings and trees add in the same order on the same ranks.
void set_variables_of_repeatable_sums() {}

// RCCL launches with no order between its communicators (src/enqueue.cc of 2.21.5).
void require_launch_order() {}

bool library_shares_gpus() { return false; }

}  // namespace nanotron::comm::detail
