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

}  // namespace

template <class M>
std::uint64_t content_hash(Device& device, Vector<const M> x) {
  const KernelRegion kernel(device, "content_hash", reads(x), writes());
  const M* const data = x.data();
  return sum_of_elements<std::uint64_t>(
      device, "content_hash", static_cast<index_t>(x.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        std::uint64_t bits = 0;
        memcpy(&bits, data + i, sizeof(M));
        return mix(bits ^ (static_cast<std::uint64_t>(i + 1) * 0x9E3779B97F4A7C15ull));
      });
}

template std::uint64_t content_hash<double>(Device&, Vector<const double>);
template std::uint64_t content_hash<float>(Device&, Vector<const float>);
template std::uint64_t content_hash<bf16>(Device&, Vector<const bf16>);

}  // namespace nanotron::kernels
