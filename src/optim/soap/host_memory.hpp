#pragma once

// Memory of the device that the host works on: itself in a host build; of a GPU a pinned copy. Private to optim.

#include <memory>

#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/pinned_memory.hpp"

namespace nanotron::optim {

/// n elements that the host alone uses: of the arena in a host build, whose plan then has them.
template <class S>
class HostArray {
 public:
  HostArray(Arena& arena, index_t n) {
    if constexpr (built_for == Processor::cpu)
      in_arena_ = arena.take<S>(MemoryKind::workspace, n);
    else if (!arena.is_planning())
      pinned_ = std::make_unique<PinnedArray<S>>(static_cast<std::size_t>(n));
  }
  S* data() const { return pinned_ ? pinned_->span().data() : in_arena_.data(); }

 private:
  Vector<S> in_arena_{};
  std::unique_ptr<PinnedArray<S>> pinned_;
};

/// Vectors of up to n elements of the device, one at a time, as the host sees them.
template <class S>
class HostCopy {
 public:
  HostCopy(const Arena& arena, index_t n) {
    if (built_for == Processor::gpu && !arena.is_planning())
      pinned_ = std::make_unique<PinnedArray<S>>(static_cast<std::size_t>(n));
  }
  S* data(const Vector<S>& x) const { return pinned_ ? pinned_->span().data() : x.data(); }
  /// data() <- x. Queued: a fence of the device comes before the host reads it.
  void read(Device& device, const Vector<S>& x) const {
    if (pinned_) Kokkos::deep_copy(device.exec(), on_host(x), x);
  }
  /// x <- data(). Queued: the host changes it after a fence only.
  void write(Device& device, const Vector<S>& x) const {
    if (pinned_) Kokkos::deep_copy(device.exec(), x, on_host(x));
  }

 private:
  using OnHost = Kokkos::View<S*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  OnHost on_host(const Vector<S>& x) const { return OnHost(pinned_->span().data(), x.extent(0)); }

  std::unique_ptr<PinnedArray<S>> pinned_;
};

}  // namespace nanotron::optim
