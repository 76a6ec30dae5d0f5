#pragma once

// Packed documents in cuDNN: of ragged tensors each document is a sequence. A graph is built for a number of them, and
// takes any documents whose number is no larger; the others are of length 0.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "nanotron/kernels/attention/attention.hpp"

namespace nanotron::kernels::fused {

/// Graphs are built for at most one document in so many positions: of more the thread blocks would find little to do.
inline constexpr index_t positions_of_document = 32;

inline index_t power_of_two(index_t at_least) {
  return static_cast<index_t>(std::bit_ceil(static_cast<std::uint64_t>(at_least)));
}
inline index_t max_documents(index_t sequences, index_t length) {
  return power_of_two(std::max(sequences, sequences * length / positions_of_document));
}

/// (With another head_dim cuDNN accumulates in tensors of every document's largest length: cudnn-frontend 1.28.)
inline bool takes_documents(const AttentionShape& s) {
  return s.documents > 0 && s.documents <= max_documents(s.batch, s.document_stride) && s.head_dim % 16 == 0;
}

/// Each offset array of a table of documents has an entry more than documents, and begins at a multiple of 16 bytes.
inline constexpr index_t ragged_tensors = 8;
inline index_t offsets_pitch(index_t documents) { return (documents + 2) / 2 * 2; }
inline index_t table_bytes(index_t documents) {
  return ragged_tensors * offsets_pitch(documents) * 8 + 2 * ((documents + 3) / 4 * 4) * 4;
}

/// The most that cuDNN 9.19 asks for with documents on GPUs of compute capability 9.0 and 10.0: 448 bytes for each, and
/// 17,152 in forward; in backward dq and sums of rows in fp32; dk and dv of each query head of a group, four bytes an
/// element. Beside it the table, and lse, dq, dk, dv of the rows. The deterministic backward is not asked for.
inline std::size_t bytes_of_documents(const AttentionShape& s) {
  const index_t documents = max_documents(s.batch, s.document_stride);
  const index_t queries = s.batch * s.query_length * s.query_heads, width = s.head_dim;  // rows of heads
  const index_t keys = s.batch * s.key_length * s.key_heads, group = s.query_heads / s.key_heads;
  const index_t forward = 17'408 + 448 * documents + table_bytes(documents) + 4 * queries + 6 * 256;
  const index_t copies = group > 1 ? 8 * keys * group * width : 0;
  const index_t backward = 4 * queries * (width + 1) + copies + 2 * width * (queries + 2 * keys);
  return static_cast<std::size_t>(forward + (s.backward == BackwardAlgorithm::fastest ? backward : 0));
}

}  // namespace nanotron::kernels::fused
