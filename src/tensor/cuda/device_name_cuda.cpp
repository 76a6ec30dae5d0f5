#include "nanotron/tensor/device_name.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "nanotron/base/error.hpp"

namespace nanotron {
namespace {

cudaDeviceProp properties() {
  int device = 0;
  cudaDeviceProp found{};
  NANOTRON_CHECK_CUDA(cudaGetDevice(&device));
  NANOTRON_CHECK_CUDA(cudaGetDeviceProperties(&found, device));
  return found;
}

}  // namespace

std::string device_name() { return properties().name; }

std::string device_bus_id() {
  const cudaDeviceProp p = properties();
  return fmt::format("{:08x}:{:02x}:{:02x}.0", p.pciDomainID, p.pciBusID, p.pciDeviceID);
}

}  // namespace nanotron
