#pragma once

// Where the update of an element loads its states from, and how it stores them: in the master type, or rounded to bf16.

#include <cstring>
#include <utility>

#include "nanotron/base/random.hpp"
#include "nanotron/kernels/loop/chunk.hpp"
#include "nanotron/kernels/optim/update_operands.hpp"

namespace nanotron::kernels {
namespace element_update {

/// f(j) for constants j = 0 .. count - 1.
template <class F, int... j>
NANOTRON_FUNCTION void for_each(std::integer_sequence<int, j...>, const F& f) {
  (f(std::integral_constant<int, j>{}), ...);
}
template <int count, class F>
NANOTRON_FUNCTION void for_each(const F& f) {
  for_each(std::make_integer_sequence<int, count>{}, f);
}

template <class M, int count>
struct MasterStates {
  M* at[count];

  template <int n>
  NANOTRON_FUNCTION void store_all(index_t i, Width<n> width, const Chunk<M, n> (&s)[count]) const {
    for_each<count>([&](const auto j) { store(at[j.value] + i, width, [&](const int k) { return s[j.value][k]; }); });
  }
};

/// x rounded to bf16: up in size where the low half of its bits and 16 random bits add up to more than they hold.
NANOTRON_FUNCTION inline bf16 rounded_stochastically(float x, std::uint32_t random16) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const bool is_finite = (bits & 0x7f800000u) != 0x7f800000u;
  return is_finite ? bf16::from_bits(static_cast<std::uint16_t>((bits + random16) >> 16)) : bf16(x);
}

template <int count>
struct Bf16States {
  bf16* at[count];
  RoundingNoise noise;
  std::uint32_t update;

  template <int n>
  NANOTRON_FUNCTION void store_all(index_t i, Width<n> width, const Chunk<float, n> (&s)[count]) const {
    Chunk<std::uint32_t, n> bits;  // 16 of each word for a state
    for_each<count>([&](const auto j) {
      if constexpr (j.value % 2 == 0) bits = random(i, width, noise.stream + j.value / 2);
      store(at[j.value] + i, width, [&](const int k) {
        return rounded_stochastically(s[j.value][k], bits[k] >> (j.value % 2 * 16) & 0xffffu);
      });
    });
  }

 private:
  // 32 bits an element, of the 128 of four neighbours in the logical tensor: one call of Philox for a chunk of these
  // four, else one for each element.
  NANOTRON_FUNCTION PhiloxCounter four(index_t index, std::uint32_t stream) const {
    return random_bits(noise.seed, stream, static_cast<std::uint64_t>(index / 4), update);
  }
  template <int n>
  NANOTRON_FUNCTION Chunk<std::uint32_t, n> random(index_t i, Width<n>, std::uint32_t stream) const {
    const index_t begin = noise.begin + i;
    Chunk<std::uint32_t, n> bits;
    if constexpr (n == 4) {
      const index_t index = noise.index(begin);
      if (index % 4 == 0 && noise.index(begin + 3) == index + 3) {
        const PhiloxCounter all = four(index, stream);
        for (int k = 0; k < n; ++k) bits.at[k] = all.word[k];
        return bits;
      }
    }
    for (int k = 0; k < n; ++k) {
      const index_t index = noise.index(begin + k);
      const PhiloxCounter all = four(index, stream);
      const index_t word = index % 4;
      bits.at[k] = word == 0 ? all.word[0] : word == 1 ? all.word[1] : word == 2 ? all.word[2] : all.word[3];
    }
    return bits;
  }
};

}  // namespace element_update
}  // namespace nanotron::kernels
