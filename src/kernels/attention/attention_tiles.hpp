#pragma once

#include <cstddef>

#include "kernels/attention/attention_backend.hpp"

namespace nanotron::kernels::bf16_tiles {

// Where bf16_tiles::available().

// Bytes of workspace per worker.
std::size_t attention_bytes(const AttentionShape& shape);

// One (sequence, key head) with its query heads, as in attention.hpp.
void forward_head(const AttentionShape& shape, index_t sequence, index_t key_head, MatrixRef<const bf16> q,
                  MatrixRef<const bf16> k, MatrixRef<const bf16> v, MatrixRef<bf16> out, float* lse, std::byte* memory);
void backward_head(const AttentionShape& shape, index_t sequence, index_t key_head,
                   const detail::AttentionGradients<bf16>& tensors, std::byte* memory);

}  // namespace nanotron::kernels::bf16_tiles
