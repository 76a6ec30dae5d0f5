#include "nanotron/kernels/reduction/content_hash.hpp"

#include <cstring>

#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

NANOTRON_FUNCTION inline std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

NANOTRON_FUNCTION inline std::uint64_t mixed(std::uint64_t bits, index_t i) {
  return mix(bits ^ (static_cast<std::uint64_t>(i + 1) * 0x9E3779B97F4A7C15ull));
}

// `count` elements, the first one in the lowest bits; no address is aligned to more than an element.
template <index_t count, class M>
NANOTRON_FUNCTION inline std::uint64_t word_of(const M* elements) {
  std::uint64_t word = 0;
  for (index_t k = 0; k < count; ++k) {
    const M element = elements[k];
    std::uint64_t bits = 0;
    memcpy(&bits, &element, sizeof(M));
    word |= bits << (8 * sizeof(M) * static_cast<std::size_t>(k));
  }
  return word;
}

constexpr index_t piece = 16384;  // words

template <class Word>
void hash_words(Device& device, const void* data, std::size_t bytes, Vector<std::uint64_t> hash) {
  const auto* const words = static_cast<const Word*>(data);
  const auto n = static_cast<index_t>(bytes / sizeof(Word));
  const Work work{.read = static_cast<double>(bytes)};
  const KernelRegion kernel(device, "content_hash", work);
  sum_of_rows<std::uint64_t>(
      device, "content_hash", (n + piece - 1) / piece,
      KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t first = at * piece, left = n - first, count = left < piece ? left : piece;
        return row.template sum<std::uint64_t>(
            count, [=](const index_t i) { return mixed(static_cast<std::uint64_t>(words[first + i]), first + i); });
      },
      hash);
}

}  // namespace

void content_hash(Device& device, const void* data, std::size_t bytes, Vector<std::uint64_t> hash) {
  const std::uint64_t odd = reinterpret_cast<std::uintptr_t>(data) | bytes;
  if (odd % 8 == 0) return hash_words<std::uint64_t>(device, data, bytes, hash);
  if (odd % 4 == 0) return hash_words<std::uint32_t>(device, data, bytes, hash);
  if (odd % 2 == 0) return hash_words<std::uint16_t>(device, data, bytes, hash);
  hash_words<std::uint8_t>(device, data, bytes, hash);
}

template <class M>
std::uint64_t content_hash(Device& device, Vector<const M> x) {
  constexpr index_t packed = sizeof(std::uint64_t) / sizeof(M);
  const KernelRegion kernel(device, "content_hash", reads(x), writes());
  const auto n = static_cast<index_t>(x.extent(0));
  const index_t words = n / packed, left = n - words * packed;
  const M* const data = x.data();
  const M* const last = data + words * packed;
  std::uint64_t hash = mix(static_cast<std::uint64_t>(n));
  hash += sum_of_elements<std::uint64_t>(
      device, "content_hash", words,
      KOKKOS_LAMBDA(const index_t i) { return mixed(word_of<packed>(data + i * packed), i); });
  if (left == 0) return hash;
  return hash + sum_of_elements<std::uint64_t>(
                    device, "content_hash", left,
                    KOKKOS_LAMBDA(const index_t i) { return mixed(word_of<1>(last + i), words + i); });
}

#define NANOTRON_INSTANTIATE(T) template std::uint64_t content_hash<T>(Device&, Vector<const T>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
