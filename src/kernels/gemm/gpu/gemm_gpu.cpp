#include "kernels/gemm/gemm_backend.hpp"
#include "nanotron/kernels/gemm/own_tiles.hpp"

// What the GEMM libraries of GPUs have in common.

namespace nanotron::kernels {
namespace detail {

template <class T, class C>
void multiply(Device& device, const GemmProblem& p, const T* a, const T* b, C* c) {
  multiply_plus<T, C>(device, p, a, b, c, c);
}
#define NANOTRON_INSTANTIATE(T, C) template void multiply<T, C>(Device&, const GemmProblem&, const T*, const T*, C*);
NANOTRON_FOR_GEMM_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

PeakShape peak_shape() { return {.smallest = 256, .largest = 8192, .per_fence = 16}; }

}  // namespace detail

template <class T>
bool runs_on_tiles(const Device&, index_t) {
  return false;
}
#define NANOTRON_INSTANTIATE(T) template bool runs_on_tiles<T>(const Device&, index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
