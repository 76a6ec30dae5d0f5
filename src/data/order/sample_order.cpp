#include "nanotron/data/order/sample_order.hpp"

#include <xxhash.h>

#include <algorithm>

#include "nanotron/base/error.hpp"

namespace nanotron::data {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit affects every output bit.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

constexpr int feistel_rounds = 8;

}  // namespace

SampleOrder::SampleOrder(std::uint64_t seed, index_t number_of_sequences, deck::Shuffle shuffle)
    : seed_(seed), number_of_sequences_(number_of_sequences), shuffle_(shuffle), half_bits_(1) {
  NANOTRON_REQUIRE(number_of_sequences >= 1 && number_of_sequences <= (index_t{1} << 60), "{} sequences",
                   number_of_sequences);
  while ((index_t{1} << (2 * half_bits_)) < number_of_sequences) ++half_bits_;
}

std::uint64_t SampleOrder::permute(std::uint64_t position, std::uint64_t epoch) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  const std::uint64_t key = mix(mix(seed_ + 0x9E3779B97F4A7C15ull) ^ epoch);
  do {
    std::uint64_t left = position >> half_bits_, right = position & mask;
    for (int round = 0; round < feistel_rounds; ++round) {
      const std::uint64_t round_key = key + static_cast<std::uint64_t>(round) * 0x9E3779B97F4A7C15ull;
      const std::uint64_t next = left ^ (mix(mix(round_key) ^ right) & mask);
      left = right;
      right = next;
    }
    position = (left << half_bits_) | right;
  } while (position >= static_cast<std::uint64_t>(number_of_sequences_));
  return position;
}

index_t SampleOrder::sequence_of(index_t global_sample_index) const {
  const index_t epoch = global_sample_index / number_of_sequences_;
  const index_t position = global_sample_index % number_of_sequences_;
  if (shuffle_ == deck::Shuffle::none) return position;
  return static_cast<index_t>(permute(static_cast<std::uint64_t>(position), static_cast<std::uint64_t>(epoch)));
}

std::uint64_t token_hash(index_t global_sample_index, std::span<const std::int32_t> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), static_cast<XXH64_hash_t>(global_sample_index));
}

namespace {

constexpr index_t max_segments = 256;

// The r with floor(r n / segments) <= i < floor((r+1) n / segments).
index_t segment_of(index_t i, index_t n, index_t segments) { return ((i + 1) * segments - 1) / n; }

}  // namespace

HeldOut::HeldOut(index_t all, index_t held_out)
    : training_(all - held_out), held_out_(held_out), segments_(std::min(held_out, max_segments)) {
  NANOTRON_REQUIRE(held_out >= 0 && training_ >= 0 && all <= (index_t{1} << 54), "{} of {} sequences", held_out, all);
}

index_t HeldOut::training(index_t k) const {
  return held_out_ == 0 ? k : k + segment_of(k, training_, segments_) * held_out_ / segments_;
}

index_t HeldOut::validation(index_t v) const {
  return v + (segment_of(v, held_out_, segments_) + 1) * training_ / segments_;
}

}  // namespace nanotron::data
