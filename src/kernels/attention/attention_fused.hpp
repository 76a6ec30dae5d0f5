#pragma once

// What the fused kernels of an NVIDIA GPU do (cuda/attention_cudnn.cpp, mma/attention_mma.cpp); a plan asks too.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "kernels/attention/fused_documents.hpp"
#include "nanotron/kernels/attention/attention_gpu.hpp"

namespace nanotron::kernels::fused {

/// What a GPU has. In a plan: a GPU build without the headers of cuDNN plans without it, a CPU build with it.
struct Available {
#if defined(NANOTRON_WITH_GPU) && !defined(NANOTRON_WITH_CUDNN)
  bool cudnn = false;
#else
  bool cudnn = true;
#endif
  bool tensor_cores = has_mma_kernels;  // of Ampere or later
};

enum class Mask { none, causal };

// A cache that grows by a token would need a plan for every length.
inline constexpr index_t fewest_queries = 64;

// Nothing for what is neither the diagonal of a sequence nor wholly before the queries.
inline std::optional<Mask> mask_of(const AttentionShape& s) {
  const bool has_documents = s.document_stride > 0;
  if (s.query_length < fewest_queries || (has_documents && !takes_documents(s))) return std::nullopt;
  if (s.query_position == s.key_position && s.query_length == s.key_length) return Mask::causal;
  const bool all_keys_before = s.query_position - s.key_position + (has_documents ? 0 : 1) >= s.key_length;
  if (s.window == 0 && all_keys_before) return Mask::none;
  return std::nullopt;
}

/// The deterministic algorithm asks for scores of the largest length in every document: too much.
inline bool has_backward(const AttentionShape& s) {
  return s.document_stride == 0 || s.backward == BackwardAlgorithm::fastest;
}

/// Documents that a graph is built for. Keys before the queries are of one document of the queries in each sequence.
inline index_t documents_of_graph(const AttentionShape& s, Mask mask) {
  if (s.document_stride == 0) return 0;
  return mask == Mask::none ? s.batch : power_of_two(std::max<index_t>(s.batch, s.documents));
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

/// Of cuDNN: with GemmMode::library, since the order of summation depends on the shape.
inline bool by_cudnn(const Device& device, const AttentionShape& s,
                     std::initializer_list<MatrixRef<const bf16>> matrices) {
  return device.gemm_mode() == GemmMode::library && s.scores.is_scale() && !s.mask.is_on() && mask_of(s).has_value() &&
         s.head_dim % 8 == 0 && s.head_dim <= 256 && s.batch > 0 && s.key_length > 0 && has_whole_groups(s) &&
         s.query_length % 4 == 0 && std::ranges::all_of(matrices, has_aligned_rows);
}

/// Of mma::attention_*. (With GemmMode::fixed_order bf16 rounds where the kernels of that mode do.)
inline bool by_mma(const Device& device, const AttentionShape& s,
                   std::initializer_list<MatrixRef<const bf16>> matrices) {
  return device.gemm_mode() == GemmMode::library && s.head_dim % 8 == 0 && s.head_dim <= mma::max_head_dim &&
         s.batch > 0 && s.key_length > 0 && std::ranges::all_of(matrices, has_aligned_rows);
}

/// No more is planned for cuDNN: a call that asks for more is made in parts.
inline constexpr std::size_t max_workspace = std::size_t{2} << 30;

/// The most that cuDNN 9.19 asks for in backward on GPUs of compute capability 8.0, 9.0 and 10.0: sums of rows; dk and
/// dv of each query head of a group; dq in fp32, twice, or deterministic ds in bf16. (In forward 256 bytes.) And the
/// sums of rows of a piece of a sequence, packed.
inline std::size_t cudnn_bytes(const AttentionShape& s) {
  if (s.document_stride > 0) return bytes_of_documents(s);
  const auto multiple = [](index_t of, index_t n) { return (n + of - 1) / of * of; };
  const index_t heads = s.batch * s.query_heads, rows = heads * s.query_length;
  const index_t copies = s.query_heads > s.key_heads ? 4 * heads * s.key_length * s.head_dim : 0;
  const index_t summed = s.backward == BackwardAlgorithm::fastest
                             ? 8 * rows * s.head_dim
                             : 2 * heads * multiple(64, s.query_length) * multiple(128, s.key_length);
  return static_cast<std::size_t>(512 + 8 * rows + copies + summed);
}

/// `whole` with as many sequences, then key heads, as fits(part) allows; nothing where one head is too much. Documents
/// of all sequences are in every part.
template <class F>
std::optional<AttentionShape> largest_part(const AttentionShape& whole, const F& fits) {
  const auto next_divisor = [](index_t n, index_t below) {
    index_t divisor = below - 1;
    while (n % divisor != 0) --divisor;
    return divisor;
  };
  AttentionShape part = whole;
  while (!fits(part)) {
    if (part.batch > 1 && part.document_stride == 0) {
      part.batch = next_divisor(whole.batch, part.batch);
    } else if (part.key_heads > 1) {
      part.key_heads = next_divisor(whole.key_heads, part.key_heads);
      part.query_heads = whole.query_heads / whole.key_heads * part.key_heads;
    } else {
      return std::nullopt;
    }
  }
  return part;
}

/// Workspace for cuDNN in backward. 0 where heads are not such as it takes.
inline std::size_t planned_bytes(const AttentionShape& s) {
  const index_t multiple = s.document_stride > 0 ? 16 : 8;
  return s.head_dim % multiple == 0 && has_whole_groups(s) ? std::min(cudnn_bytes(s), max_workspace) : 0;
}

/// Calls of cuDNN for one backward in planned_bytes(s); 0 where one key head is too much.
inline index_t planned_calls(const AttentionShape& s) {
  const auto part = largest_part(s, [](const AttentionShape& p) { return cudnn_bytes(p) <= max_workspace; });
  return part ? s.batch / part->batch * (s.key_heads / part->key_heads) : 0;
}

enum class Library { none, mma, cudnn };

/// What runs attention on a GPU. (Where cuDNN finds no plan in its workspace after all: as without it.)
template <class T>
Library library_of(const Device& device, const AttentionShape& s, std::initializer_list<MatrixRef<const T>> matrices,
                   const Available& there) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (there.cudnn && by_cudnn(device, s, matrices)) return Library::cudnn;
    if (there.tensor_cores && by_mma(device, s, matrices)) return Library::mma;
  }
  return Library::none;
}

}  // namespace nanotron::kernels::fused
