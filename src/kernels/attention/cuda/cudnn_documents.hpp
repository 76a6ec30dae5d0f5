#pragma once

// Packed documents as cuDNN takes them: where each begins in the matrices, and what it leaves to do beside its call.
//
//   diagonal            a document of the queries' piece; one of a single position is not cuDNN's: out = v
//   keys before them    of each sequence the document that has its last key and its first query, if there is one

#include "kernels/attention/fused_documents.hpp"

namespace nanotron::kernels::cudnn {

/// The matrices that have offsets of their own; statistics, dq and dkv hold the rows of a piece without gaps.
enum class Ragged { q, k, v, out, dout, statistics, dq, dkv };

/// In memory of the device: document i has query_lengths[i] queries and key_lengths[i] keys, 0 after the last one. Its
/// first row is of(t)[i] elements after the first row of matrix t.
struct DocumentTable {
  index_t documents = 0;
  index_t pitch = 0;                                              // entries from one matrix to the next
  std::int64_t* offsets = nullptr;                                // (ragged_tensors, pitch)
  std::int32_t *query_lengths = nullptr, *key_lengths = nullptr;  // (documents)
  index_t row[fused::ragged_tensors] = {};                        // elements from a row to the next, by matrix

  std::int64_t* of(Ragged t) const { return offsets + static_cast<index_t>(t) * pitch; }
};

/// Overwrites the table. There are at most table.documents documents.
void write_documents(Device& device, const AttentionShape& shape, const DocumentTable& table);

/// Some heads of all sequences: of lse those of `shape`, of all_heads heads, the first one at its data.
struct HeadStatistics {
  float* lse;
  index_t all_heads;
  float* rows;  // (rows of the queries' piece, heads)
};

/// rows <- lse.
void pack_statistics(Device& device, const AttentionShape& shape, const HeadStatistics& statistics);

/// lse <- rows where cuDNN computed them; the others' out and lse are overwritten.
void finish_forward(Device& device, const AttentionShape& shape, MatrixRef<const bf16> q, MatrixRef<const bf16> k,
                    MatrixRef<const bf16> v, MatrixRef<bf16> out, const HeadStatistics& statistics);

/// dq, dk, dv are overwritten, from those of cuDNN where it computed them.
struct DocumentGradients {
  MatrixRef<bf16> dq, dk, dv;
  const bf16 *packed_dq, *packed_dk, *packed_dv;
};
void finish_backward(Device& device, const AttentionShape& shape, MatrixRef<const bf16> dout,
                     const DocumentGradients& gradients);

}  // namespace nanotron::kernels::cudnn
