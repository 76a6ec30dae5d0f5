#pragma once

// The factor s of a norm's weights (NormScale), as kernels read it: a chunk of it at a time. Private to kernels/norm.

#include "nanotron/kernels/loop/chunk.hpp"
#include "nanotron/kernels/norm/norm.hpp"

namespace nanotron::kernels {

template <class M>
struct PlainScale {
  const M* w;
  template <int n>
  NANOTRON_FUNCTION Chunk<M, n> at(index_t c, Width<n> width) const {
    return load(w + c, width);
  }
};
template <class M>
struct OnePlusScale {
  const M* w;
  template <int n>
  NANOTRON_FUNCTION Chunk<M, n> at(index_t c, Width<n> width) const {
    const Chunk<M, n> stored = load(w + c, width);
    return chunk(width, [&](const int k) { return M(1) + stored[k]; });
  }
};
template <class M>
struct UnitScale {
  template <int n>
  NANOTRON_FUNCTION Chunk<M, n> at(index_t, Width<n> width) const {
    return chunk(width, [](const int) { return M(1); });
  }
};

/// Calls f with the one that the weights are.
template <class M, class F>
void with_scale(const NormScale<M>& s, const F& f) {
  if (s.w.extent(0) == 0) return f(UnitScale<M>{});
  if (s.adds_one) return f(OnePlusScale<M>{s.w.data()});
  f(PlainScale<M>{s.w.data()});
}

/// What a norm writes from the normalised and scaled value: the value itself, or its sum with a residual.
template <class T>
struct NoResidual {
  template <int n, class F>
  NANOTRON_FUNCTION void store_to(T* y, index_t, index_t c, Width<n> width, const F& value) const {
    store(y + c, width, value);
  }
};
template <class T>
struct PlusResidual {
  const T* residual;
  template <int n, class F>
  NANOTRON_FUNCTION void store_to(T* y, index_t row_begin, index_t c, Width<n> width, const F& value) const {
    const auto r = load(residual + row_begin + c, width);
    store(y + c, width, [&](const int k) { return r[k] + value(k); });
  }
};

}  // namespace nanotron::kernels
