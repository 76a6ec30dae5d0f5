#pragma once

// Kokkos from initialize to finalize, on this rank's GPU. One per process, created in main after MPI;
// views and execution spaces must be destroyed before it.

#include <Kokkos_Core.hpp>

#include <string>
#include <vector>

namespace nanotron {

class KokkosSession {
 public:
  /// gpu: the device number, or -1 for Kokkos' default (always -1 in a host build).
  explicit KokkosSession(int gpu) {
    std::string program = "nanotron";
    std::string device = "--kokkos-device-id=" + std::to_string(gpu);
    std::vector<char*> arguments{program.data()};
    if (gpu >= 0) arguments.push_back(device.data());
    int count = static_cast<int>(arguments.size());
    arguments.push_back(nullptr);
    Kokkos::initialize(count, arguments.data());
  }
  ~KokkosSession() { Kokkos::finalize(); }
  KokkosSession(const KokkosSession&) = delete;
  KokkosSession& operator=(const KokkosSession&) = delete;
};

}  // namespace nanotron
