#pragma once

// Kokkos from initialize to finalize, on this rank's GPU. One per process, created in main after MPI;
// views and execution spaces must be destroyed before it.

#include <Kokkos_Core.hpp>

namespace nanotron {

class KokkosSession {
 public:
  /// gpu: the device number, or -1 for Kokkos' default (always -1 in a host build). Error(deck_error) for a number of
  /// OpenMP threads with which the runtime would crash.
  explicit KokkosSession(int gpu);
  ~KokkosSession() { Kokkos::finalize(); }
  KokkosSession(const KokkosSession&) = delete;
  KokkosSession& operator=(const KokkosSession&) = delete;
};

}  // namespace nanotron
