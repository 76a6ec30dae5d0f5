#include "nanotron/kernels/gemm/gemm_peak.hpp"

#include <algorithm>

#include "nanotron/base/timer.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

// Gives the device a GEMM workspace for the duration of a scope.
class WorkspaceLoan {
 public:
  WorkspaceLoan(Device& device, std::size_t bytes)
      : device_(device), previous_(device.gemm_workspace()), memory_("nanotron::gemm_peak", bytes) {
    device_.set_gemm_workspace(Vector<std::byte>(memory_.data(), memory_.size()));
  }
  ~WorkspaceLoan() { device_.set_gemm_workspace(previous_); }
  WorkspaceLoan(const WorkspaceLoan&) = delete;
  WorkspaceLoan& operator=(const WorkspaceLoan&) = delete;

 private:
  Device& device_;
  Vector<std::byte> previous_;
  Kokkos::View<std::byte*, MemorySpace> memory_;
};

}  // namespace

template <class T>
double gemm_peak(Device& device, index_t n, double seconds) {
  const WorkspaceLoan loan(device, gemm_workspace_bytes<T>(device.gemm_mode(), n, n, n));
  Kokkos::View<T*, MemorySpace> memory("nanotron::gemm_peak", 3 * n * n);
  const index_t size = n * n;
  for_each_element(
      device, "gemm_peak", 2 * size,
      KOKKOS_LAMBDA(const index_t i) { memory(i) = static_cast<T>(static_cast<float>(i * 37 % 101) / 101.0f - 0.5f); });
  const MatrixRef<const T> a(memory.data(), n, n);
  const MatrixRef<const T> b(memory.data() + size, n, n);
  const MatrixRef<T> c(memory.data() + 2 * size, n, n);
  const auto once = [&] {
    const double begin = wall_seconds();
    gemm<T, T>(device, Op::none, Op::transpose, 1.0, a, b, 0.0, c);
    device.fence();
    return wall_seconds() - begin;
  };
  once();
  double best = once();
  for (double spent = best; spent < seconds;) {
    const double took = once();
    best = std::min(best, took);
    spent += took;
  }
  return 2.0 * static_cast<double>(n) * static_cast<double>(size) / best;
}

template double gemm_peak<double>(Device&, index_t, double);
template double gemm_peak<float>(Device&, index_t, double);
template double gemm_peak<bf16>(Device&, index_t, double);

}  // namespace nanotron::kernels
