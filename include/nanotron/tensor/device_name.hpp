#pragma once

#include <string>

namespace nanotron {

/// This rank's GPU, as CUDA names it ("NVIDIA H200"); empty in a host build.
std::string device_name();

}  // namespace nanotron
