#pragma once

#include <cstddef>

#include "kernels/gemm/gemm_backend.hpp"

namespace nanotron::kernels::amx {

// Whether this bf16 GEMM should run on AMX tiles: the processor has AMX, one thread per rank, and
// enough rows to amortise packing B.
bool wants(const detail::GemmProblem& problem);

// Bytes of workspace for a GEMM with op(B) (k, n).
std::size_t workspace_bytes(index_t n, index_t k);

// C = alpha op(A) op(B) + beta C; workspace has workspace_bytes(n, k). C is bf16 or float.
template <class C>
void multiply(const detail::GemmProblem& problem, const bf16* a, const bf16* b, C* c, std::byte* workspace);

}  // namespace nanotron::kernels::amx
