#pragma once

// A kernel as the work of one block of threads, written once for a GPU and for a host, where tests compare it with its
// reference implementation. Values of threads are kept in PerThread:
//
//   GPU    one element, of the calling thread, in registers
//   host   an element for each thread of the block; one core runs the threads in turn, so that barriers do nothing

#include <cstddef>

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
void launch_blocks(const Device& device, const char* label, index_t blocks, const F& f) {
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
#else
  Kokkos::parallel_for(kept_label<F>(label), RangePolicy(device.exec(), 0, blocks), [f](const index_t i) {
    alignas(16) static thread_local std::byte shared[F::shared_bytes];
    f(Block{i, shared});
  });
#endif
}

}  // namespace nanotron::kernels::mma
