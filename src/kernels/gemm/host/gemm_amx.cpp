#include "kernels/gemm/gemm_amx.hpp"

#include "kernels/gemm/amx_tiles.hpp"

#ifdef NANOTRON_HAS_AMX
#include <sys/syscall.h>
#include <unistd.h>

// The number of oneDNN's threads where it is built with OpenMP; null where it is built with another
// runtime.
extern "C" int omp_get_max_threads() __attribute__((weak));
#endif

// bf16 GEMM on AMX tiles. Both operands are packed into tiles: all of B, and one block of A's rows at
// a time, which stays in the L2 cache. The inner loop then reads whole tiles in order. On one Sapphire
// Rapids core and h = 512 this is about twice as fast as oneDNN 2.6, which transposes the operands
// of weight gradients (A^T B) element by element. With more threads per rank oneDNN is used.

namespace nanotron::kernels::amx {

#ifdef NANOTRON_HAS_AMX

namespace {

constexpr index_t block = 2 * tile_extent;  // rows and columns of one register block
// 512 KiB, a quarter of the L2 cache.
constexpr index_t packed_a_elements = index_t{256} << 10;
constexpr index_t least_rows = 64;

index_t rows_per_block(index_t k) {
  const index_t depth = tiles(k, tile_depth) * tile_depth;
  return std::max(block, packed_a_elements / depth / block * block);
}

void pack_a(const detail::GemmProblem& p, const bf16* a, index_t first, index_t rows, bf16* to) {
  if (p.op_a == Op::none) {
    pack_along_depth<false>(a + first * p.leading_a, p.leading_a, rows, p.k, to);
  } else {
    pack_across_depth<true>(a + first, p.leading_a, rows, p.k, to);
  }
}

void pack_b(const detail::GemmProblem& p, const bf16* b, bf16* to) {
  if (p.op_b == Op::none) {
    pack_across_depth<false>(b, p.leading_b, p.n, p.k, to);
  } else {
    pack_along_depth<true>(b, p.leading_b, p.n, p.k, to);
  }
}

// C = alpha sums + beta C for the first rows x columns of a 32 x 32 block of sums.
template <class C>
void finish(const detail::GemmProblem& p, const float* sums, index_t rows, index_t columns, C* c) {
  const __m512 alpha = _mm512_set1_ps(static_cast<float>(p.alpha));
  const __m512 beta = _mm512_set1_ps(static_cast<float>(p.beta));
  for (index_t r = 0; r < rows; ++r) {
    for (index_t j = 0; j < columns; j += 16) {
      const auto mask = static_cast<__mmask16>(low_lanes(std::min<index_t>(columns - j, 16)));
      C* const target = c + r * p.leading_c + j;
      __m512 value = _mm512_mul_ps(alpha, _mm512_loadu_ps(sums + r * block + j));
      if constexpr (std::is_same_v<C, float>) {
        if (p.beta != 0.0)
          value = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(mask, target), value);
        _mm512_mask_storeu_ps(target, mask, value);
      } else {
        if (p.beta != 0.0) value = _mm512_fmadd_ps(beta, load_widened(target, mask), value);
        store_rounded(target, mask, value);
      }
    }
  }
}

}  // namespace

bool available() {
  static const bool granted = [] {
    constexpr long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return granted;
}

bool wants(const detail::GemmProblem& p) {
  static const bool one_thread = omp_get_max_threads == nullptr || omp_get_max_threads() == 1;
  return one_thread && p.m >= least_rows && available();
}

std::size_t workspace_bytes(index_t n, index_t k) {
  const index_t elements = packed_elements(n, k) + packed_elements(rows_per_block(k), k);
  return static_cast<std::size_t>(elements) * sizeof(bf16);
}

template <class C>
void multiply(const detail::GemmProblem& p, const bf16* a, const bf16* b, C* c, std::byte* workspace) {
  const TileScope tiles_configured;
  const index_t count = tiles(p.k, tile_depth);
  const index_t strip = count * tile_elements;
  bf16* const packed_b = reinterpret_cast<bf16*>(workspace);
  bf16* const packed_a = packed_b + packed_elements(p.n, p.k);
  pack_b(p, b, packed_b);
  const index_t step = rows_per_block(p.k);
  const bool straight =
      std::is_same_v<C, float> && p.alpha == 1.0 && (p.beta == 0.0 || p.beta == 1.0);
  alignas(64) float sums[block * block];
  for (index_t first = 0; first < p.m; first += step) {
    const index_t rows = std::min(step, p.m - first);
    pack_a(p, a, first, rows, packed_a);
    for (index_t j = 0; j < p.n; j += block) {
      const bf16* const strips_b = packed_b + j / tile_extent * strip;
      for (index_t i = 0; i < rows; i += block) {
        const bf16* const strips_a = packed_a + i / tile_extent * strip;
        const index_t height = std::min(block, rows - i), width = std::min(block, p.n - j);
        C* const corner = c + (first + i) * p.leading_c + j;
        if constexpr (std::is_same_v<C, float>) {
          if (straight && height == block && width == block) {
            multiply_2x2(strips_a, strip, strips_b, strip, count, corner, p.leading_c,
                         p.beta != 0.0);
            continue;
          }
        }
        multiply_2x2(strips_a, strip, strips_b, strip, count, sums, block, false);
        finish(p, sums, height, width, corner);
      }
    }
  }
}

#else

bool wants(const detail::GemmProblem&) { return false; }
std::size_t workspace_bytes(index_t, index_t) { return 0; }
template <class C>
void multiply(const detail::GemmProblem&, const bf16*, const bf16*, C*, std::byte*) {}

#endif

template void multiply<bf16>(const detail::GemmProblem&, const bf16*, const bf16*, bf16*, std::byte*);
template void multiply<float>(const detail::GemmProblem&, const bf16*, const bf16*, float*, std::byte*);

}  // namespace nanotron::kernels::amx
