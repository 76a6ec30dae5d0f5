#pragma once

// Packed documents as cuDNN takes them: where each begins in the matrices, and what must be computed outside cuDNN.
//
//   diagonal            a document of the queries' piece; one of a single position is not passed to cuDNN: out = v
//   keys before them    per sequence the document that continues from the keys' piece into the queries' piece, if any

#include "kernels/attention/fused_documents.hpp"

namespace nanotron::kernels::cudnn {

/// The matrices that have offsets of their own; statistics, dq and dkv hold the rows of a piece without gaps.
enum class Ragged { q, k, v, out, dout, statistics, dq, dkv };

/// In memory of the device: document i has query_lengths[i] queries and key_lengths[i] keys, 0 after the last one. Its
/// first row is of(t)[i] elements after the first row of matrix t.
struct DocumentTable {
  index_t max_documents = 0;
  index_t pitch = 0;                                              // entries from one matrix to the next
  std::int64_t* offsets = nullptr;                                // (ragged_tensors, pitch)
  std::int32_t *query_lengths = nullptr, *key_lengths = nullptr;  // (max_documents)
  index_t row_stride[fused::ragged_tensors] = {};                 // elements from a row to the next, by matrix

  std::int64_t* of(Ragged t) const { return offsets + static_cast<index_t>(t) * pitch; }
};

/// Overwrites the table. There are at most table.max_documents documents.
void write_documents(Device& device, const AttentionShape& shape, const DocumentTable& table);

/// Statistics of the heads in `shape`. lse points at the first of them in an array with all_heads heads per sequence.
struct HeadStatistics {
  float* lse;
  index_t all_heads;
  float* rows;  // (rows of the queries' piece, heads)
};

/// rows <- lse.
void pack_statistics(Device& device, const AttentionShape& shape, const HeadStatistics& statistics);

/// lse <- rows where cuDNN computed them; for all other queries out and lse are computed here.
void finish_forward(Device& device, const AttentionShape& shape, MatrixRef<const bf16> q, MatrixRef<const bf16> k,
                    MatrixRef<const bf16> v, MatrixRef<bf16> out, const HeadStatistics& statistics);

/// dq, dk, dv are overwritten: copied from packed_* where cuDNN computed them, else computed here.
struct DocumentGradients {
  MatrixRef<bf16> dq, dk, dv;
  const bf16 *packed_dq, *packed_dk, *packed_dv;
};
void finish_backward(Device& device, const AttentionShape& shape, MatrixRef<const bf16> dout,
                     const DocumentGradients& gradients);

}  // namespace nanotron::kernels::cudnn
