#pragma once

#include <cstddef>

#include "kernels/gemm/gemm_backend.hpp"

namespace nanotron::kernels::amx {

// Whether a product of bf16 matrices should be made here: an AMX machine, one thread a rank, and
// enough rows to earn back the packing of B.
bool wants(const detail::Product& product);

// Bytes of workspace for a product with B of (k, n).
std::size_t workspace_bytes(index_t n, index_t k);

// C = alpha op(A) op(B) + beta C in `workspace` of workspace_bytes(n, k). C is bf16 or float.
template <class C>
void multiply(const detail::Product& product, const bf16* a, const bf16* b, C* c,
              std::byte* workspace);

}  // namespace nanotron::kernels::amx
