#pragma once

// What an update stores beside the master weights. Private to kernels/optim.

#include "nanotron/base/error.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

struct NoCopy {
  template <class M>
  NANOTRON_FUNCTION void operator()(index_t, M) const {}
};

struct CopyInBf16 {
  bf16* data;
  template <class M>
  NANOTRON_FUNCTION void operator()(index_t i, M value) const {
    data[i] = bf16(static_cast<float>(value));
  }
};

/// run(store), store(i, value) writing to the copy of n elements where there is one.
template <class F>
void with_copy(const Vector<bf16>& copy, std::size_t n, const F& run) {
  if (copy.extent(0) == 0) return run(NoCopy{});
  NANOTRON_REQUIRE(copy.extent(0) == n, "an update of {} elements, {} in the copy", n, copy.extent(0));
  run(CopyInBf16{copy.data()});
}

}  // namespace nanotron::kernels
