#include "nanotron/kernels/reduction/scaled_half.hpp"

#include <bit>
#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

// Elements [begin, end) of block b.
struct Block {
  index_t begin, end;
  NANOTRON_FUNCTION Block(index_t n, index_t blocks, index_t b)
      : begin(n - (blocks - b) * half_block), end(begin + half_block) {
    if (begin < 0) begin = 0;
  }
};

template <class M>
inline constexpr int max_exponent = sizeof(M) == 8 ? 1022 : 126;  // 2^e and 2^-e are normal numbers

template <class M>
inline constexpr M greatest = std::numeric_limits<M>::max();

// e of scaled_half.hpp, clamped so that 2^e and 2^-e are normal numbers of M.
template <class M>
NANOTRON_FUNCTION int exponent_for(M largest, int bits) {
  if (!(largest > 0) || !(largest <= greatest<M>)) return 0;
  int above = 0;  // largest < 2^above
  static_cast<void>(frexp(largest, &above));
  const int e = 15 - bits - above;
  return e > max_exponent<M> ? max_exponent<M> : e < -max_exponent<M> ? -max_exponent<M> : e;
}

int bits_of(int ranks) { return std::bit_width(static_cast<unsigned>(ranks - 1)); }  // ceil(log2 ranks)

void require_sizes(std::size_t x, std::size_t y, std::size_t largest) {
  NANOTRON_REQUIRE(x == y && largest == static_cast<std::size_t>(half_blocks(static_cast<index_t>(x))),
                   "{} and {} elements with {} blocks", x, y, largest);
}

}  // namespace

template <class M>
void block_largest(Device& device, Vector<const M> x, Vector<M> largest) {
  const KernelRegion kernel(device, "block_largest", reads(x), writes(largest));
  require_sizes(x.extent(0), x.extent(0), largest.extent(0));
  const M* const from = x.data();
  M* const to = largest.data();
  const auto n = static_cast<index_t>(x.extent(0)), blocks = half_blocks(n);
  const M infinity = std::numeric_limits<M>::infinity();
  for_each_row(
      device, "block_largest", blocks, KOKKOS_LAMBDA(const Row& row, const index_t b) {
        const Block block(n, blocks, b);
        const M* const part = from + block.begin;
        to[b] = row.template max<M>(block.end - block.begin, M(0), [=](const index_t i) {
          const M size = part[i] < 0 ? -part[i] : part[i];
          return size == size ? size : infinity;
        });
      });
}

template <class M>
void scale_to_half(Device& device, Vector<const M> x, Vector<const M> largest, int ranks, Vector<fp16> y) {
  const KernelRegion kernel(device, "scale_to_half", reads(x, largest), writes(y));
  require_sizes(x.extent(0), y.extent(0), largest.extent(0));
  const M* const from = x.data();
  const M* const most = largest.data();
  fp16* const to = y.data();
  const auto n = static_cast<index_t>(x.extent(0)), blocks = half_blocks(n);
  const int bits = bits_of(ranks);
  for_each_row(
      device, "scale_to_half", blocks, KOKKOS_LAMBDA(const Row& row, const index_t b) {
        const Block block(n, blocks, b);
        const M factor = ldexp(M(1), exponent_for(most[b], bits));
        const M* const in = from + block.begin;
        fp16* const out = to + block.begin;
        row.for_each(block.end - block.begin,
                     [=](const index_t i) { out[i] = fp16(static_cast<float>(in[i] * factor)); });
      });
}

template <class M>
void scale_from_half(Device& device, Vector<const fp16> y, Vector<const M> largest, int ranks, Vector<M> x) {
  const KernelRegion kernel(device, "scale_from_half", reads(y, largest), writes(x));
  require_sizes(x.extent(0), y.extent(0), largest.extent(0));
  const fp16* const from = y.data();
  const M* const most = largest.data();
  M* const to = x.data();
  const auto n = static_cast<index_t>(x.extent(0)), blocks = half_blocks(n);
  const int bits = bits_of(ranks);
  for_each_row(
      device, "scale_from_half", blocks, KOKKOS_LAMBDA(const Row& row, const index_t b) {
        const Block block(n, blocks, b);
        const M factor = ldexp(M(1), -exponent_for(most[b], bits));
        const fp16* const in = from + block.begin;
        M* const out = to + block.begin;
        row.for_each(block.end - block.begin,
                     [=](const index_t i) { out[i] = static_cast<M>(static_cast<float>(in[i])) * factor; });
      });
}

#define NANOTRON_INSTANTIATE(M)                                                                 \
  template void block_largest<M>(Device&, Vector<const M>, Vector<M>);                          \
  template void scale_to_half<M>(Device&, Vector<const M>, Vector<const M>, int, Vector<fp16>); \
  template void scale_from_half<M>(Device&, Vector<const fp16>, Vector<const M>, int, Vector<M>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
