#pragma once

// Where an update loads its moments from, and how it stores them. Private to kernels/optim.

#include "nanotron/base/random.hpp"
#include "nanotron/kernels/loop/chunk.hpp"
#include "nanotron/kernels/optim/adamw.hpp"

namespace nanotron::kernels {

template <class M>
struct MasterMoments {
  M *first, *second;

  template <int n>
  NANOTRON_FUNCTION void store_both(index_t i, Width<n> width, const Chunk<M, n>& m, const Chunk<M, n>& v) const {
    store(first + i, width, [&](const int k) { return m[k]; });
    store(second + i, width, [&](const int k) { return v[k]; });
  }
};

/// x rounded to bf16: up in size where the low half of its bits and 16 random bits add up to more than they hold.
NANOTRON_FUNCTION inline bf16 rounded_stochastically(float x, std::uint32_t random16) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const bool is_finite = (bits & 0x7f800000u) != 0x7f800000u;
  return is_finite ? bf16::from_bits(static_cast<std::uint16_t>((bits + random16) >> 16)) : bf16(x);
}

struct Bf16Moments {
  bf16 *first, *second;
  RoundingNoise noise;
  std::uint32_t step;

  template <int n>
  NANOTRON_FUNCTION void store_both(index_t i, Width<n> width, const Chunk<float, n>& m,
                                    const Chunk<float, n>& v) const {
    const Chunk<std::uint32_t, n> bits = random(i, width);
    store(first + i, width, [&](const int k) { return rounded_stochastically(m[k], bits[k] & 0xffffu); });
    store(second + i, width, [&](const int k) { return rounded_stochastically(v[k], bits[k] >> 16); });
  }

 private:
  // 32 bits an element, of the 128 of four neighbours in the logical tensor: one call of Philox for a chunk of these
  // four, else one for each element.
  NANOTRON_FUNCTION PhiloxCounter four(index_t index) const {
    return random_bits(noise.seed, noise.stream, static_cast<std::uint64_t>(index / 4), step);
  }
  template <int n>
  NANOTRON_FUNCTION Chunk<std::uint32_t, n> random(index_t i, Width<n>) const {
    const index_t begin = noise.begin + i;
    Chunk<std::uint32_t, n> bits;
    if constexpr (n == 4) {
      const index_t index = noise.index(begin);
      if (index % 4 == 0 && noise.index(begin + 3) == index + 3) {
        const PhiloxCounter all = four(index);
        for (int k = 0; k < n; ++k) bits.at[k] = all.word[k];
        return bits;
      }
    }
    for (int k = 0; k < n; ++k) {
      const index_t index = noise.index(begin + k);
      const PhiloxCounter all = four(index);
      const index_t word = index % 4;
      bits.at[k] = word == 0 ? all.word[0] : word == 1 ? all.word[1] : word == 2 ? all.word[2] : all.word[3];
    }
    return bits;
  }
};

}  // namespace nanotron::kernels
