#pragma once

// What the fused kernels of a GPU do (cuda/attention_cudnn.cpp, mma/attention_mma.cpp); a plan asks too.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "nanotron/kernels/attention/attention_mma.hpp"

namespace nanotron::kernels::fused {

// A GPU build without the headers of cuDNN plans without it; a CPU build plans for GPUs that have it.
#if defined(NANOTRON_WITH_CUDA) && !defined(NANOTRON_WITH_CUDNN)
inline constexpr bool has_cudnn = false;
#else
inline constexpr bool has_cudnn = true;
#endif

enum class Mask { none, causal };

// A cache that grows by a token would need a plan for every length.
inline constexpr index_t fewest_queries = 64;

// Nothing for what is neither the diagonal of a sequence nor wholly before the queries, and for documents.
inline std::optional<Mask> mask_of(const AttentionShape& s) {
  if (s.document_stride > 0 || s.query_length < fewest_queries) return std::nullopt;
  if (s.query_position == s.key_position && s.query_length == s.key_length) return Mask::causal;
  const bool all_keys_before = s.query_position - s.key_position + 1 >= s.key_length;
  if (s.window == 0 && all_keys_before) return Mask::none;
  return std::nullopt;
}

inline bool has_whole_groups(const AttentionShape& s) {
  if (s.query_heads == 0 || s.key_heads == 0 || s.query_heads % s.key_heads != 0) return false;
  const index_t group = s.query_heads / s.key_heads;
  for (index_t h = 0; h < s.query_heads; ++h) {
    if (s.key_head_of(h) != h / group) return false;
  }
  return true;
}

// Rows of heads begin at multiples of 16 bytes.
inline bool is_aligned(const MatrixRef<const bf16>& x) {
  return x.leading % 8 == 0 && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
}

// Statistics of a head too: of each sequence, and of the piece that begins at `lse`.
inline bool is_aligned(const AttentionShape& s, const float* lse) {
  return s.query_row_stride() % 4 == 0 && reinterpret_cast<std::uintptr_t>(lse) % 16 == 0;
}

/// Of cuDNN: in bf16, with GemmMode::library, since the order of summation depends on the shape.
inline bool by_cudnn(const Device& device, const AttentionShape& s, const float* lse,
                     std::initializer_list<MatrixRef<const bf16>> matrices) {
  const auto aligned = [](const MatrixRef<const bf16>& x) { return is_aligned(x); };
  return has_cudnn && device.gemm_mode() == GemmMode::library && mask_of(s).has_value() && s.head_dim % 8 == 0 &&
         s.batch > 0 && s.key_length > 0 && has_whole_groups(s) && is_aligned(s, lse) &&
         std::ranges::all_of(matrices, aligned);
}

/// Of mma::attention_*: in bf16, with GemmMode::library, as the GEMMs of its blocks are on tensor cores.
inline bool by_mma(const Device& device, const AttentionShape& s,
                   std::initializer_list<MatrixRef<const bf16>> matrices) {
  const auto aligned = [](const MatrixRef<const bf16>& x) { return is_aligned(x); };
  return device.gemm_mode() == GemmMode::library && s.head_dim % 8 == 0 && s.head_dim <= mma::most_head_dim &&
         s.batch > 0 && s.key_length > 0 && std::ranges::all_of(matrices, aligned);
}

enum class Library { none, mma, cudnn };

template <class T>
Library library_of(const Device& device, const AttentionShape& s, const master_t<T>* lse,
                   std::initializer_list<MatrixRef<const T>> matrices) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (by_cudnn(device, s, lse, matrices)) return Library::cudnn;
    if (by_mma(device, s, matrices)) return Library::mma;
  }
  return Library::none;
}

}  // namespace nanotron::kernels::fused
