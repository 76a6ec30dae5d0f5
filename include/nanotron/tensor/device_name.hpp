#pragma once

#include <string>

namespace nanotron {

/// This rank's GPU, as CUDA names it ("NVIDIA H200"); empty in a host build.
std::string device_name();

/// Its PCI bus id, as NVML names devices: "00000000:3b:00.0"; empty in a host build.
std::string device_bus_id();

}  // namespace nanotron
