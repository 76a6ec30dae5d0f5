#pragma once

#include <cstddef>

#include "kernels/attention/attention_backend.hpp"

namespace nanotron::kernels::bf16_tiles {

// Whether attention runs on tiles. GemmMode::fixed_order: only on AMX, whose order the other instructions do not have.
bool attends(GemmMode mode);

// Where it does:

// Bytes of workspace per worker.
std::size_t attention_bytes(const AttentionShape& shape);

// One (sequence, key head) with its query heads, as in attention.hpp. With GemmMode::fixed_order the bits are those of
// host/attention_host.cpp.
void forward_head(GemmMode mode, const AttentionShape& shape, index_t sequence, index_t key_head,
                  MatrixRef<const bf16> q, MatrixRef<const bf16> k, MatrixRef<const bf16> v, MatrixRef<bf16> out,
                  float* lse, std::byte* memory);
void backward_head(GemmMode mode, const AttentionShape& shape, index_t sequence, index_t key_head,
                   const detail::AttentionGradients<bf16>& tensors, std::byte* memory);

}  // namespace nanotron::kernels::bf16_tiles
