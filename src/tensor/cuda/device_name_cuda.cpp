#include "nanotron/tensor/device_name.hpp"

#include <cuda_runtime_api.h>

#include "nanotron/base/error.hpp"

namespace nanotron {

std::string device_name() {
  int device = 0;
  cudaDeviceProp properties{};
  NANOTRON_CHECK_CUDA(cudaGetDevice(&device));
  NANOTRON_CHECK_CUDA(cudaGetDeviceProperties(&properties, device));
  return properties.name;
}

}  // namespace nanotron
