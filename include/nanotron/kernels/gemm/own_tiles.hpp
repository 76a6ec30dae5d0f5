#pragma once

// GEMM in bf16 on packed tiles of our own (kernels/gemm/gemm.hpp), on a host with AMX or AVX512_BF16.

#include "nanotron/tensor/device.hpp"

namespace nanotron::kernels {

/// Whether GEMMs of T whose C has m rows run on these tiles, with enough workspace. They keep nothing for a shape
/// (m, n, k), so each call may have another one, and no element of C depends on m or n. Another GEMM may continue a sum
/// over k with the same bits where C is in fp32, alpha = beta = 1, m and n are multiples of 32 and k is even.
template <class T>
bool runs_on_tiles(const Device& device, index_t m);

}  // namespace nanotron::kernels
