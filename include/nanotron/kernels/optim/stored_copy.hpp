#pragma once

// What an update stores beside the master weights. For kernels of updates.

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/chunk.hpp"

namespace nanotron::kernels {

struct NoCopy {
  template <class M, int n>
  NANOTRON_FUNCTION void operator()(index_t, Width<n>, const Chunk<M, n>&) const {}
};

struct CopyInBf16 {
  bf16* data;
  template <class M, int n>
  NANOTRON_FUNCTION void operator()(index_t i, Width<n> width, const Chunk<M, n>& value) const {
    store(data + i, width, [&](const int k) { return static_cast<float>(value[k]); });
  }
};

/// run(copy), copy(i, Width, values) writing to the copy of n elements where there is one.
template <class F>
void with_copy(const Vector<bf16>& copy, std::size_t n, const F& run) {
  if (copy.extent(0) == 0) return run(NoCopy{});
  NANOTRON_REQUIRE(copy.extent(0) == n, "an update of {} elements, {} in the copy", n, copy.extent(0));
  run(CopyInBf16{copy.data()});
}

}  // namespace nanotron::kernels
