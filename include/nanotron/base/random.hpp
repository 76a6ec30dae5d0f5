#pragma once

// Counter-based random numbers: every value is a pure function of (seed, stream, index, step), where `stream` is
// the key of a purpose (stream_id). It does not depend on ranks, threads or the grid. Philox4x32-10: Salmon,
// Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11.

#include <cmath>
#include <cstdint>
#include <string_view>

#include "nanotron/base/elementary/circular.hpp"
#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/base/types.hpp"

namespace nanotron {

struct PhiloxCounter {
  std::uint32_t word[4];
};
struct PhiloxKey {
  std::uint32_t word[2];
};

/// 128 random bits for a counter and a key.
NANOTRON_FUNCTION inline PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  std::uint32_t* c = counter.word;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c[0];
    const std::uint64_t p1 = 0xCD9E8D57ull * c[2];
    const std::uint32_t c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ key.word[0];
    const std::uint32_t c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ key.word[1];
    c[1] = static_cast<std::uint32_t>(p1);
    c[3] = static_cast<std::uint32_t>(p0);
    c[0] = c0;
    c[2] = c2;
    key.word[0] += 0x9E3779B9u;
    key.word[1] += 0xBB67AE85u;
  }
  return counter;
}

/// The 128 bits of (seed, stream, index, step): key = seed, counter = (index, stream, step).
NANOTRON_FUNCTION inline PhiloxCounter random_bits(std::uint64_t seed, std::uint32_t stream, std::uint64_t index,
                                                   std::uint32_t step = 0) {
  return philox({{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), stream, step}},
                {{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}});
}

namespace detail {
// 53 bits to (0, 1].
NANOTRON_FUNCTION inline double unit_interval(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(high) << 32) | low;
  return (static_cast<double>(bits >> 11) + 1.0) * 0x1.0p-53;
}
}  // namespace detail

/// Uniform in (0, 1].
NANOTRON_FUNCTION inline double uniform(std::uint64_t seed, std::uint32_t stream, std::uint64_t index,
                                        std::uint32_t step = 0) {
  const PhiloxCounter r = random_bits(seed, stream, index, step);
  return detail::unit_interval(r.word[0], r.word[1]);
}

/// Standard normal, by Box and Muller.
NANOTRON_FUNCTION inline double normal(std::uint64_t seed, std::uint32_t stream, std::uint64_t index,
                                       std::uint32_t step = 0) {
  const PhiloxCounter r = random_bits(seed, stream, index, step);
  const double radius = std::sqrt(-2.0 * logarithm(detail::unit_interval(r.word[0], r.word[1])));
  return radius * cosine(6.283185307179586476925 * detail::unit_interval(r.word[2], r.word[3]));
}

/// The key `stream` of a named tensor or purpose: FNV-1a of the name.
constexpr std::uint32_t stream_id(std::string_view name) {
  std::uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

}  // namespace nanotron
