#include "nanotron/kernels/gemm/peak/gemm_peak.hpp"

#include <algorithm>
#include <type_traits>

#include "kernels/gemm/gemm_backend.hpp"
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

template <class T>
void fill(Device& device, const Vector<T>& values) {
  for_each_element(
      device, "gemm_peak", static_cast<index_t>(values.size()), KOKKOS_LAMBDA(const index_t i) {
        values.data()[i] = static_cast<T>(static_cast<float>(i * 37 % 101) / 101.0f - 0.5f);
      });
}

// C = A B^T of order n, with memory of its own.
template <class T>
class SquareGemm {
 public:
  SquareGemm(Device& device, index_t n)
      : device_(device),
        loan_(device, gemm_workspace_bytes<T>(device.gemm_mode(), built_for, n, n, n)),
        memory_("nanotron::gemm_peak", 3 * n * n),
        a_(memory_.data(), n, n),
        b_(memory_.data() + n * n, n, n),
        c_(memory_.data() + 2 * n * n, n, n) {
    fill<T>(device, Vector<T>(memory_.data(), 2 * n * n));
    seconds(1);
  }

  // Of one GEMM, where so many are queued before the fence.
  double seconds(int count) {
    const double begin = wall_seconds();
    for (int i = 0; i < count; ++i) gemm<T, T>(device_, Op::none, Op::transpose, 1.0, a_, b_, 0.0, c_);
    device_.fence();
    return (wall_seconds() - begin) / count;
  }

 private:
  Device& device_;
  WorkspaceLoan loan_;
  Kokkos::View<T*, MemorySpace> memory_;
  MatrixRef<const T> a_, b_;
  MatrixRef<T> c_;
};

}  // namespace

template <class T>
double gemm_peak(Device& device, index_t n, double seconds) {
  SquareGemm<T> gemms(device, n);
  double best = gemms.seconds(1);
  const double fit = std::clamp(seconds / (4 * best), 1.0, static_cast<double>(detail::peak_shape().per_fence));
  const int count = static_cast<int>(fit);
  for (double spent = best; spent < seconds;) {
    const double each = gemms.seconds(count);
    best = std::min(best, each);
    spent += each * count;
  }
  const auto order = static_cast<double>(n);
  return 2.0 * order * order * order / best;
}

template <class T>
index_t gemm_peak_order(Device& device) {
  constexpr double long_enough = 5e-3;  // of a GEMM: a thousand launches
  detail::PeakShape shape = detail::peak_shape();
  if (std::is_same_v<T, double>) shape.smallest /= 2, shape.largest /= 2;  // else half of a short run's start
  index_t n = shape.smallest;
  while (n < shape.largest && SquareGemm<T>(device, n).seconds(1) < long_enough) n *= 2;
  return n;
}

#define NANOTRON_INSTANTIATE(T)                           \
  template double gemm_peak<T>(Device&, index_t, double); \
  template index_t gemm_peak_order<T>(Device&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
