#pragma once

#include <cstddef>

#include "kernels/gemm/gemm_backend.hpp"

namespace nanotron::kernels::bf16_tiles {

// Whether this process may use the instructions of the tiles; where the operating system has to permit them, requested
// once.
bool available();
// Of this build: "AMX tiles", "AVX-512 tiles" or "BFMMLA tiles".
const char* instructions();

// The threads of a rank.
index_t all_workers();

// Whether this bf16 GEMM should run on tiles: the processor has them, the threads are Kokkos' own, and there are enough
// rows for all of them and to amortise packing B.
bool wants(const detail::GemmProblem& problem);

// Bytes of workspace for a GEMM with op(B) (k, n), and for smaller ones.
std::size_t workspace_bytes(index_t n, index_t k, index_t workers = all_workers());

// C = alpha op(A) op(B) + beta C; workspace has workspace_bytes(n, k, workers). C is bf16 or float. The same bits for
// any number of workers.
template <class C>
void multiply(const Device& device, const detail::GemmProblem& problem, const bf16* a, const bf16* b, C* c,
              std::byte* workspace, index_t workers = all_workers());

}  // namespace nanotron::kernels::bf16_tiles
