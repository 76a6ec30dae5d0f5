#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "comm/transport/device_transport.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/base/process.hpp"

namespace nanotron::comm::detail {
namespace {

// Clients of CUDA's multi-process service share its connections: more for each may leave none for the last.
bool has_process_service() {
  return std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr || ::access("/tmp/nvidia-mps", F_OK) == 0;
}

}  // namespace

// The UUID: MIG slices have their own.
std::string gpu_identity() {
  int device = 0;
  NANOTRON_CHECK_GPU(gpuGetDevice(&device));
  gpuDeviceProp properties{};
  NANOTRON_CHECK_GPU(gpuGetDeviceProperties(&properties, device));
  return {properties.uuid.bytes, sizeof properties.uuid.bytes};
}

void prepare_environment() {
  // A module that is loaded by its kernel's first launch may wait for the device, where a receive may be waiting for
  // what that kernel computes.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  // A stream that waits holds up those that share its hardware queue: a rank of a ring has more than the usual 8.
  if (!has_process_service()) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

void set_variables_of_repeatable_sums() { setenv("NCCL_NVLS_ENABLE", "0", 0); }

// Before CUDA 12.3 a launch of NCCL waits for the end of the one before (src/enqueue.cc of 2.30, getImplicitOrder): a
// send for the receive that was posted before it.
void require_launch_order() {
  int driver = 0;
  NANOTRON_CHECK_GPU(gpuDriverGetVersion(&driver));
  const char* const order = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (driver >= 12030 || (order != nullptr && std::string_view(order) == "0")) return;
  fail(ExitCode::system_error,
       {.what = "messages between GPUs need a newer driver",
        .expected = "a driver for CUDA 12.3 or newer",
        .found = fmt::format("CUDA {}.{}", driver / 1000, driver % 1000 / 10),
        .where = fmt::format("host {}", host_name()),
        .change = "use hosts with a newer driver, pp = 1 and no ring, or parallel%backend = 'mpi', which goes through "
                  "the memory of the host"});
}

bool library_shares_gpus() {
  const char* value = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return value != nullptr && std::strtoll(value, nullptr, 0) != 0;
}

}  // namespace nanotron::comm::detail
