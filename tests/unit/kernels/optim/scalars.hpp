#pragma once

#include "nanotron/kernels/optim/update_scalars.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {

/// What the device has decided, for the kernels of an update.
class Scalars {
 public:
  explicit Scalars(const kernels::UpdateScalars& scalars) : memory_("scalars", 1) {
    set_values(memory_, std::vector{scalars});
  }
  static Scalars scaled(double gradient_scale) { return Scalars({.gradient_scale = gradient_scale}); }
  static Scalars skipped() { return Scalars({.gradient_scale = NAN, .updates = false}); }
  Vector<const kernels::UpdateScalars> read() const { return memory_; }

 private:
  Kokkos::View<kernels::UpdateScalars*, Kokkos::LayoutRight, MemorySpace> memory_;
};

// Whether a vector still has the bits that it was made with.
template <class T>
bool is_unchanged(const Array<T>& x) {
  const std::vector<T> now = values_of(x.vector());
  return std::memcmp(now.data(), x.host.data(), now.size() * sizeof(T)) == 0;
}

}  // namespace nanotron::test
