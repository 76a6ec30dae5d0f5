#include "kernels/gemm/gemm_tiles.hpp"

#include "kernels/gemm/bf16_tiles.hpp"

#ifdef NANOTRON_HAS_BF16_TILES
#include "nanotron/kernels/loop/loop.hpp"

// The number of oneDNN's threads where it is built with OpenMP; null where it is built with another
// runtime.
extern "C" int omp_get_max_threads() __attribute__((weak));
#endif
#ifdef NANOTRON_HAS_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

// Both operands are packed into tiles: all of B, and one block of A's rows at a time, which stays in the L2 cache. The
// inner loop then reads whole tiles in order. oneDNN 2.6 transposes the operands of weight gradients (A^T B) element by
// element: on one Sapphire Rapids core and h = 512 it is half as fast.

namespace nanotron::kernels::bf16_tiles {

#ifdef NANOTRON_HAS_BF16_TILES

namespace {

constexpr index_t block = 2 * tile_extent;  // rows and columns of one register block
// 512 KiB: a quarter of the L2 cache on Sapphire Rapids, half of it on Zen 4.
constexpr index_t packed_a_elements = index_t{256} << 10;
constexpr index_t min_rows = 64;

index_t depth_of(index_t k) { return std::max<index_t>(1, tiles(k, tile_depth)) * tile_depth; }
index_t rows_per_block(index_t k) { return std::max(block, packed_a_elements / depth_of(k) / block * block); }
// Elements of a worker's rows of A; what is enough for some k is enough for all smaller ones.
index_t slice_of(index_t k) { return std::max(packed_a_elements, block * depth_of(k)); }

void pack_a(const detail::GemmProblem& p, const bf16* a, index_t first, index_t rows, bf16* to) {
  if (p.op_a == Op::none) {
    pack_along_depth<false>(a + first * p.leading_a, p.leading_a, rows, p.k, to);
  } else {
    pack_across_depth<true>(a + first, p.leading_a, rows, p.k, to);
  }
}

// Columns [first, first + columns) of op(B); first is a multiple of block.
void pack_b(const detail::GemmProblem& p, const bf16* b, index_t first, index_t columns, bf16* to) {
  if (p.op_b == Op::none) {
    pack_across_depth<false>(b + first, p.leading_b, columns, p.k, to);
  } else {
    pack_along_depth<true>(b + first * p.leading_b, p.leading_b, columns, p.k, to);
  }
}

// C = alpha sums + beta C for the first rows x columns of a 32 x 32 block of sums.
template <class C>
void finish(const detail::GemmProblem& p, const float* sums, index_t rows, index_t columns, C* c) {
  const Floats alpha = all(static_cast<float>(p.alpha)), beta = all(static_cast<float>(p.beta));
  for (index_t r = 0; r < rows; ++r) {
    for (index_t j = 0; j < columns; j += 16) {
      const FirstLanes part = first_lanes(columns - j);
      C* const target = c + r * p.leading_c + j;
      Floats value = multiply(alpha, load(sums + r * block + j));
      if constexpr (std::is_same_v<C, float>) {
        if (p.beta != 0.0) value = multiply_add(beta, load(target, part), value);
        store(target, part, value);
      } else {
        if (p.beta != 0.0) value = multiply_add(beta, load_widened(target, part), value);
        store_rounded(target, part, value);
      }
    }
  }
}

// C of `rows` rows from row `first` on, A's rows and all of B packed.
template <class C>
void multiply_rows(const detail::GemmProblem& p, const bf16* packed_a, const bf16* packed_b, index_t first,
                   index_t rows, C* c) {
  const index_t count = tiles(p.k, tile_depth), strip = count * tile_elements;
  const bool straight = std::is_same_v<C, float> && p.alpha == 1.0 && (p.beta == 0.0 || p.beta == 1.0);
  const index_t last_depth = p.k - (count - 1) * tile_depth;
  alignas(64) float sums[block * block];
  for (index_t j = 0; j < p.n; j += block) {
    const bf16* const strips_b = packed_b + j / tile_extent * strip;
    for (index_t i = 0; i < rows; i += block) {
      const bf16* const strips_a = packed_a + i / tile_extent * strip;
      const index_t height = std::min(block, rows - i), width = std::min(block, p.n - j);
      C* const corner = c + (first + i) * p.leading_c + j;
      if constexpr (std::is_same_v<C, float>) {
        if (straight && height == block && width == block) {
          multiply_block(strips_a, strip, strips_b, strip, count, corner, p.leading_c, p.beta != 0.0,
                         {block, last_depth});
          continue;
        }
      }
      multiply_block(strips_a, strip, strips_b, strip, count, sums, block, false, {height, last_depth});
      finish(p, sums, height, width, corner);
    }
  }
}

template <class F>
void for_each_worker(const Device& device, const char* label, index_t workers, const F& f) {
  if (workers == 1) return f(0);
  Kokkos::parallel_for(kept_label<F>(label), RangePolicy(device.exec(), 0, workers), f);
}

}  // namespace

#ifdef NANOTRON_HAS_AMX
bool available() {
  static const bool granted = [] {
    constexpr long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return granted;
}
const char* instructions() { return "AMX tiles"; }
#else
bool available() { return true; }
#ifdef __aarch64__
const char* instructions() { return "BFMMLA tiles"; }
#else
const char* instructions() { return "AVX-512 tiles"; }
#endif
#endif

index_t all_workers() { return ExecutionSpace().concurrency(); }

bool wants(const detail::GemmProblem& p) {
  static const bool own_threads = omp_get_max_threads == nullptr || omp_get_max_threads() <= all_workers();
  return own_threads && p.m >= std::max(min_rows, block * all_workers()) && available();
}

std::size_t workspace_bytes(index_t n, index_t k, index_t workers) {
  const index_t elements = packed_elements(n, k) + workers * slice_of(k);
  return static_cast<std::size_t>(elements) * sizeof(bf16);
}

template <class C>
void multiply(const Device& device, const detail::GemmProblem& p, const bf16* a, const bf16* b, C* c,
              std::byte* workspace, index_t workers) {
  bf16* const packed_b = reinterpret_cast<bf16*>(workspace);
  bf16* const packed_a = packed_b + packed_elements(p.n, p.k);
  const index_t rounds = tiles(p.m, workers * rows_per_block(p.k));
  const index_t step = tiles(p.m, workers * rounds * block) * block;  // at most rows_per_block
  const index_t slice = slice_of(p.k);
  const index_t columns = tiles(p.n, workers * block) * block;
  const auto pack = [=](const index_t worker) {
    const index_t first = worker * columns;
    if (first < p.n) {
      pack_b(p, b, first, std::min(columns, p.n - first), packed_b + packed_elements(first, p.k));
    }
  };
  for_each_worker(device, "pack_b", workers, pack);
  const auto work = [=](const index_t worker) {
    const TileScope tiles_configured;
    bf16* const own = packed_a + worker * slice;
    for (index_t first = worker * step; first < p.m; first += workers * step) {
      const index_t rows = std::min(step, p.m - first);
      pack_a(p, a, first, rows, own);
      multiply_rows(p, own, packed_b, first, rows, c);
    }
  };
  for_each_worker(device, "gemm_tiles", workers, work);
}

#else

bool available() { return false; }
const char* instructions() { return ""; }
bool wants(const detail::GemmProblem&) { return false; }
index_t all_workers() { return 1; }
std::size_t workspace_bytes(index_t, index_t, index_t) { return 0; }
template <class C>
void multiply(const Device&, const detail::GemmProblem&, const bf16*, const bf16*, C*, std::byte*, index_t) {}

#endif

template void multiply<bf16>(const Device&, const detail::GemmProblem&, const bf16*, const bf16*, bf16*, std::byte*,
                             index_t);
template void multiply<float>(const Device&, const detail::GemmProblem&, const bf16*, const bf16*, float*, std::byte*,
                              index_t);

}  // namespace nanotron::kernels::bf16_tiles
