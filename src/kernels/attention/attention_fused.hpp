#pragma once

// What the fused kernels of a GPU do (cuda/attention_cudnn.cpp, mma/attention_mma.cpp); a plan asks too.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "nanotron/kernels/attention/attention_mma.hpp"

namespace nanotron::kernels::fused {

/// What a GPU has. In a plan: a GPU build without the headers of cuDNN plans without it, a CPU build with it.
struct Available {
#if defined(NANOTRON_WITH_CUDA) && !defined(NANOTRON_WITH_CUDNN)
  bool cudnn = false;
#else
  bool cudnn = true;
#endif
  bool tensor_cores = true;  // of Ampere or later
};

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
inline bool has_aligned_rows(const MatrixRef<const bf16>& x) {
  return x.leading % 8 == 0 && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
}

// Statistics of a head too: of each sequence, and of the piece that begins at `lse`.
inline bool has_aligned_statistics(const AttentionShape& s, const float* lse) {
  return s.query_row_stride() % 4 == 0 && reinterpret_cast<std::uintptr_t>(lse) % 16 == 0;
}

/// Of cuDNN: with GemmMode::library, since the order of summation depends on the shape.
inline bool by_cudnn(const Device& device, const AttentionShape& s, const float* lse,
                     std::initializer_list<MatrixRef<const bf16>> matrices) {
  return device.gemm_mode() == GemmMode::library && mask_of(s).has_value() && s.head_dim % 8 == 0 && s.batch > 0 &&
         s.key_length > 0 && has_whole_groups(s) && has_aligned_statistics(s, lse) &&
         std::ranges::all_of(matrices, has_aligned_rows);
}

/// Of mma::attention_*. (With GemmMode::fixed_order bf16 rounds where the kernels of that mode do.)
inline bool by_mma(const Device& device, const AttentionShape& s,
                   std::initializer_list<MatrixRef<const bf16>> matrices) {
  return device.gemm_mode() == GemmMode::library && s.head_dim % 8 == 0 && s.head_dim <= mma::most_head_dim &&
         s.batch > 0 && s.key_length > 0 && std::ranges::all_of(matrices, has_aligned_rows);
}

enum class Library { none, mma, cudnn };

/// What runs attention on a GPU. (Where cuDNN finds no plan in its workspace after all: as without it.)
template <class T>
Library library_of(const Device& device, const AttentionShape& s, const master_t<T>* lse,
                   std::initializer_list<MatrixRef<const T>> matrices, const Available& there) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (there.cudnn && by_cudnn(device, s, lse, matrices)) return Library::cudnn;
    if (there.tensor_cores && by_mma(device, s, matrices)) return Library::mma;
  }
  return Library::none;
}

}  // namespace nanotron::kernels::fused
