#pragma once

// A kernel as the work of one block of threads, written once for a GPU and for a host, where tests compare it with its
// reference implementation. Values of threads are kept in PerThread:
//
//   GPU    one element, of the calling thread, in registers
//   host   an element for each thread of the block; one core runs the threads in turn, so that barriers do nothing

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "nanotron/kernels/loop/loop.hpp"

#if defined(__CUDA_ARCH__)
#define NANOTRON_UNROLL _Pragma("unroll")
#else
#define NANOTRON_UNROLL
#endif

namespace nanotron::kernels::mma {

inline constexpr int warp_size = 32;

/// Threads of a block whose values the caller keeps: of all on a host, of one on a GPU.
template <int threads>
NANOTRON_FUNCTION constexpr int kept_threads() {
#if defined(__CUDA_ARCH__)
  return 1;
#else
  return threads;
#endif
}

template <class T, int threads>
struct PerThread {
  T of[kept_threads<threads>()];
};

/// After branches that threads of a warp take differently, before one of its products.
NANOTRON_FUNCTION inline void reconverge() {
#if defined(__CUDA_ARCH__)
  __syncwarp();
#endif
}

/// The thread of the block whose value is number `kept` of a PerThread.
NANOTRON_FUNCTION inline int thread_of(int kept) {
#if defined(__CUDA_ARCH__)
  return static_cast<int>(threadIdx.x);
#else
  return kept;
#endif
}

/// Of shared memory. (32 bits on a GPU, where registers are few.)
struct SharedAddress {
#if defined(__CUDA_ARCH__)
  unsigned at;
  __device__ explicit SharedAddress(std::byte* p) : at(static_cast<unsigned>(__cvta_generic_to_shared(p))) {}
#else
  std::byte* at;
  explicit SharedAddress(std::byte* p) : at(p) {}
#endif
  SharedAddress() = default;
  NANOTRON_FUNCTION SharedAddress operator+(int bytes) const {
    SharedAddress moved = *this;
    moved.at += bytes;
    return moved;
  }
};

struct Block {
  index_t index;
  std::byte* shared;  // F::shared_bytes, 16-byte aligned

  /// What the threads wrote to shared memory is seen by all of them.
  NANOTRON_FUNCTION void barrier() const {
#if defined(__CUDA_ARCH__)
    __syncthreads();
#endif
  }
};

#if defined(__CUDACC__)
template <class F>
__global__ void __launch_bounds__(F::threads) run_block(const F f) {
  extern __shared__ __align__(128) std::byte shared_of_block[];
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  f(Block{static_cast<index_t>(blockIdx.x), shared_of_block});
#else
  __trap();  // has_tensor_cores
#endif
}
#endif

/// f(block) for blocks 0 ... blocks - 1, each with F::threads threads and F::shared_bytes of shared memory.
template <class F>
void launch_blocks([[maybe_unused]] const Device& device, const char* label, index_t blocks, const F& f) {
  if (blocks == 0) return;
  NANOTRON_REQUIRE(blocks <= std::numeric_limits<int>::max(), "{}: {} blocks", label, blocks);
#if defined(__CUDACC__)
  void* arguments[] = {const_cast<F*>(&f)};
  cudaError_t error = cudaFuncSetAttribute(run_block<F>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(F::shared_bytes));
  if (error == cudaSuccess) {
    error = cudaLaunchKernel(reinterpret_cast<const void*>(run_block<F>), dim3(static_cast<unsigned>(blocks)),
                             dim3(F::threads), arguments, F::shared_bytes, device.exec().cuda_stream());
  }
  if (error != cudaSuccess) {
    fail(ExitCode::system_error,
         {.what = fmt::format("The kernel {} could not be launched", label), .found = cudaGetErrorString(error)});
  }
#elif defined(NANOTRON_WITH_HIP)
  NANOTRON_REQUIRE(has_mma_kernels, "{}: this build has no kernels for tensor cores ({} blocks, {} bytes a block)",
                   label, blocks, sizeof(f));
#else
  Kokkos::parallel_for(kept_label<F>(label), RangePolicy(device.exec(), 0, blocks), [f](const index_t i) {
    alignas(16) static thread_local std::byte shared[F::shared_bytes];
    f(Block{i, shared});
  });
#endif
}

// Matrix multiplications of a warp on tensor cores: m16n8k16 in bf16 with sums in fp32 (PTX ISA, mma.sync and ldmatrix;
// the element that each thread holds is in the figures there). g = lane / 4 and t = lane % 4:
//
//   A (16, 16)   4 registers: rows g, g + 8 x columns 2 t, 2 t + 8      each register two elements, of adjacent columns
//   B (16, 8)    2 registers: rows 2 t, 2 t + 8 x column g              the same of adjacent rows
//   C (16, 8)    4 sums: rows g, g + 8 x columns 2 t, 2 t + 1
//
// On a host the same registers are filled and multiplied by loops.

/// Four 8 x 8 matrices of bf16, a register of each thread for each.
struct Registers {
  std::uint32_t r[4];
};
/// C of a warp.
struct Sums {
  float c[4];
};

/// The low half is the first.
NANOTRON_FUNCTION inline std::uint32_t pack(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  std::uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
#else
  return bf16(first).bits | static_cast<std::uint32_t>(bf16(second).bits) << 16;
#endif
}
inline float unpack(std::uint32_t both, int which) {
  return bf16::from_bits(static_cast<std::uint16_t>(both >> (16 * which)));
}

/// 2^x.
NANOTRON_FUNCTION inline float exponential_of_2(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

/// The sum, or the largest, of the four threads that hold a row of C.
template <int threads, class Combine>
NANOTRON_FUNCTION void combine_quads(PerThread<float, threads>& x, const Combine& combine) {
#if defined(__CUDA_ARCH__)
  x.of[0] = combine(x.of[0], __shfl_xor_sync(0xffffffffu, x.of[0], 1));
  x.of[0] = combine(x.of[0], __shfl_xor_sync(0xffffffffu, x.of[0], 2));
#else
  for (int first = 0; first < threads; first += 4) {
    float* const quad = x.of + first;
    const float all = combine(combine(quad[0], quad[1]), combine(quad[2], quad[3]));
    for (int i = 0; i < 4; ++i) quad[i] = all;
  }
#endif
}

/// rows[lane]: where row lane % 8 of matrix lane / 8 begins in shared memory, 8 elements. Register i of a thread:
/// elements 2 t, 2 t + 1 of row g of matrix i; `transposed`: of column g.
template <bool transposed, int threads>
NANOTRON_FUNCTION void load_matrices(const PerThread<SharedAddress, threads>& rows, PerThread<Registers, threads>& to) {
#if defined(__CUDA_ARCH__)
  std::uint32_t* const r = to.of[0].r;
  const unsigned address = rows.of[0].at;
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
  }
#else
  for (int thread = 0; thread < threads; ++thread) {
    const int warp = thread / warp_size * warp_size, g = thread % warp_size / 4, t = thread % 4;
    for (int i = 0; i < 4; ++i) {
      const auto bits = [&](int row, int column) -> std::uint32_t {
        return reinterpret_cast<const bf16*>(rows.of[warp + 8 * i + row].at)[column].bits;
      };
      const std::uint32_t low = transposed ? bits(2 * t, g) : bits(g, 2 * t);
      const std::uint32_t high = transposed ? bits(2 * t + 1, g) : bits(g, 2 * t + 1);
      to.of[thread].r[i] = low | high << 16;
    }
  }
#endif
}

/// C += A B in each warp, with B in registers `first_b` and `first_b` + 1 of b.
template <int first_b, int threads>
NANOTRON_FUNCTION void multiply(const PerThread<Registers, threads>& a, const PerThread<Registers, threads>& b,
                                PerThread<Sums, threads>& c) {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 800
  const std::uint32_t* const left = a.of[0].r;
  float* const sum = c.of[0].c;
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(b.of[0].r[first_b]), "r"(b.of[0].r[first_b + 1]));
#endif
#else
  for (int warp = 0; warp < threads; warp += warp_size) {
    float left[16][16], right[16][8];
    for (int lane = 0; lane < warp_size; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 4; ++i)
          left[g + 8 * (i % 2)][2 * t + 8 * (i / 2) + half] = unpack(a.of[warp + lane].r[i], half);
        for (int i = 0; i < 2; ++i) right[2 * t + 8 * i + half][g] = unpack(b.of[warp + lane].r[first_b + i], half);
      }
    }
    for (int lane = 0; lane < warp_size; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        float& sum = c.of[warp + lane].c[i];
        for (int k = 0; k < 16; ++k) sum += left[row][k] * right[k][column];
      }
    }
  }
#endif
}

/// What the registers of operands hold; codes: gemm/grouped.
struct Bf16Terms {};

template <int first_b, int threads>
NANOTRON_FUNCTION void multiply(Bf16Terms, const PerThread<Registers, threads>& a,
                                const PerThread<Registers, threads>& b, PerThread<Sums, threads>& c) {
  multiply<first_b>(a, b, c);
}

/// 16 bytes from global to shared memory, zeros where !there. Done for the calling thread at wait_for_copies.
NANOTRON_FUNCTION inline void start_copy(SharedAddress to, const bf16* from, bool there) {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to.at), "l"(from), "r"(there ? 16 : 0) : "memory");
#endif
#else
  if (there) {
    std::memcpy(to.at, from, 16);
  } else {
    std::memset(to.at, 0, 16);
  }
#endif
}

NANOTRON_FUNCTION inline void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

}  // namespace nanotron::kernels::mma
