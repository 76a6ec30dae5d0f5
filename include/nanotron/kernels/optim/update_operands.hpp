#pragma once

// What the update of n elements reads and writes, whatever its rule; a copy of the weights in bf16.

#include <cstdint>
#include <variant>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/chunk.hpp"
#include "nanotron/kernels/optim/update_scalars.hpp"
#include "nanotron/tensor/shard.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// The random bits of stochastic rounding: a function of seed, stream, update and element of the logical tensor.
/// Element i of a vector is its element index(begin + i).
struct RoundingNoise {
  std::uint64_t seed = 0;
  std::uint32_t stream = 0;
  LogicalIndex index{};
  index_t begin = 0;
};

/// In the master type; or in bf16, with M = float. An update computes in M and rounds to bf16 stochastically (Forsythe
/// 1959; Zamirai et al. 2021, "Revisiting BFloat16 training"): with x between neighbours a < x < b of bf16, to b with
/// probability (x - a) / (b - a), to 2^-16; exactly representable values stay.
template <class M>
using StateVector = std::variant<Vector<M>, Vector<bf16>>;

/// p and the states are updated if scalars (1) allow it, g is read: (n) each. The states are of one type.
template <class M>
struct UpdateOperands {
  Vector<M> p{};
  Vector<const M> g{};
  std::vector<StateVector<M>> states;  // in the order of the rule
  Vector<const UpdateScalars> scalars{};
  Vector<bf16> copy{};      // (n) or empty: p rounded to bf16
  RoundingNoise noise{};    // of states in bf16
  std::int64_t update = 1;  // its number, from 1
};

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
