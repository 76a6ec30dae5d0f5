#pragma once

// Causal grouped-query attention without storing the s x s scores (FlashAttention: Dao et al. 2022;
// Dao 2023): blocks of queries times blocks of keys, an online softmax with a running max and sum;
// backward recomputes the probabilities from the saved log-sum-exp.
//
//   s_ij = q_i . k_j / sqrt(head_dim)     p_ij = exp(s_ij - lse_i)     o_i = sum_j p_ij v_j
//   dp_ij = do_i . v_j                    ds_ij = p_ij (dp_ij - do_i . o_i)
//   dq_i = sum_j ds_ij k_j / sqrt(head_dim)     dk_j = sum_i ds_ij q_i / sqrt(head_dim)
//   dv_j = sum_i p_ij do_i
//
// Sums and softmax are of the master type. With T = bf16, p and ds are rounded to bf16 as operands of
// GEMMs (on the host: where it runs on tiles).
//
// Another s_ij: kernels/attention/score_map.hpp. A random mask of p_ij: kernels/dropout/random_mask.hpp.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nanotron/kernels/attention/score_map.hpp"
#include "nanotron/kernels/dropout/random_mask.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/shard.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// Backward of a GPU library: fastest may sum in a different order in each run (atomics); deterministic does not, and
/// takes more time and workspace. Kernels of our own have one order.
enum class BackwardAlgorithm { fastest, deterministic };

/// Queries and keys are pieces of a sequence. A query attends to the keys of its own document up to its own
/// position, or to the last `window` of them (Beltagy et al. 2020): a contiguous range. If it is empty,
/// out is 0 and lse the lowest finite number. Needs 1 <= head_dim <= 1024.
struct AttentionShape {
  index_t batch = 0;         // sequences, b
  index_t query_length = 0;  // tokens of one sequence in q, out
  index_t key_length = 0;    // tokens of one sequence in k, v
  index_t query_heads = 0;   // on this rank
  index_t key_heads = 0;     // on this rank
  index_t head_dim = 0;
  index_t first_query_head = 0;  // global index of this rank's first head
  index_t first_key_head = 0;
  index_t group = 1;           // global query heads per key head
  index_t key_rows = 0;        // rows per sequence of k and v; 0: key_length (a KV cache has more)
  index_t query_rows = 0;      // the same in q, out and, per head, in lse; 0: query_length
  index_t query_position = 0;  // of query 0 in its sequence
  index_t key_position = 0;    // of key 0
  /// (batch, document_stride): the first position of each position's document, ascending within a
  /// sequence; null: a sequence is one document.
  const std::int32_t* document_starts = nullptr;
  index_t document_stride = 0;
  index_t window = 0;  // max keys per query, its own position and those right before it; 0: all
  BackwardAlgorithm backward = BackwardAlgorithm::fastest;
  std::int32_t documents = 0;  // max number with two or more positions, in all sequences; 0: not counted
  ScoreMap scores{};
  RandomMask mask{};  // of the probabilities

  NANOTRON_FUNCTION index_t key_head_of(index_t query_head) const {
    return (first_query_head + query_head) / group - first_key_head;
  }
  NANOTRON_FUNCTION index_t key_row_stride() const { return key_rows > 0 ? key_rows : key_length; }
  NANOTRON_FUNCTION index_t query_row_stride() const { return query_rows > 0 ? query_rows : query_length; }
  /// The keys of this rank that a query attends to.
  NANOTRON_FUNCTION Range keys_of(index_t sequence, index_t query) const {
    const index_t position = query_position + query;
    const index_t last = position + 1 - key_position;
    const index_t end = last < 0 ? 0 : last < key_length ? last : key_length;
    const index_t start = document_starts == nullptr ? 0 : document_starts[sequence * document_stride + position];
    const index_t oldest = window > 0 ? position + 1 - window : 0;
    const index_t first = (start < oldest ? oldest : start) - key_position;
    return {first < 0 ? 0 : first < end ? first : end, end};
  }
  /// Those in [first, first + count), relative to `first`.
  NANOTRON_FUNCTION Range keys_of(index_t sequence, index_t query, index_t first, index_t count) const {
    const Range all = keys_of(sequence, query);
    const index_t begin = all.begin - first, end = all.end - first;
    return {begin < 0 ? 0 : begin < count ? begin : count, end < 0 ? 0 : end < count ? end : count};
  }
};

/// q, out (batch * query_length, query_heads * head_dim) and k, v (batch * key_length, key_heads *
/// head_dim), each with its own leading dimension: all may be columns of one fused buffer.
/// out and lse (batch * query_heads * query_length) are overwritten; out may alias q. workspace has
/// attention_workspace_bytes(shape, device.processor()) or more, and is overwritten.
template <class T>
void attention_forward(Device& device, const AttentionShape& shape, MatrixRef<const T> q, MatrixRef<const T> k,
                       MatrixRef<const T> v, MatrixRef<T> out, Vector<master_t<T>> lse, Vector<std::byte> workspace);

/// dq, dk, dv are overwritten; gradients of a key head are summed over its query heads on this rank, in
/// order. k, v may be a subset of the keys if out and lse are over all keys: then dk, dv are of the subset
/// and dq is its share. workspace as above.
template <class T>
void attention_backward(Device& device, const AttentionShape& shape, MatrixRef<const T> q, MatrixRef<const T> k,
                        MatrixRef<const T> v, MatrixRef<const T> out, MatrixRef<const T> dout,
                        Vector<const master_t<T>> lse, MatrixRef<T> dq, MatrixRef<T> dk, MatrixRef<T> dv,
                        Vector<std::byte> workspace);

/// The implementation for this shape with aligned rows, in logs: "AMX", "AVX-512" or "BFMMLA tiles", "blocks in cache",
/// on a GPU "cuDNN 9.28.1" and how it runs backward, "own kernels on tensor cores" and why, or "batched GEMMs".
template <class T>
std::string attention_library(Device& device, const AttentionShape& shape);

/// For a micro-batch of packed documents: the values of AttentionShape::documents for each of which a GPU library has a
/// separate plan. With more documents than the last value the library is not used.
std::vector<index_t> planned_documents(index_t sequences, index_t length);

/// Bytes of workspace, enough for forward and backward. For shape.documents, those of the last plan.
template <class T>
std::size_t attention_workspace_bytes(const AttentionShape& shape, Processor processor);

// Ring attention (Liu et al. 2023): attention over several sets of keys is merged from the attention over each set,
// by its log-sum-exp (Dao 2023). Gradients of the parts are added.
//
//   lse = log(exp(lse) + exp(lse_part))      sum = exp(lse_old - lse) sum + exp(lse_part - lse) part

/// part and part_lse: outputs of attention_forward of this shape. sum and lse have the same layout and are updated;
/// initially sum is 0 and lse the lowest finite number.
template <class T>
void merge_attention(Device& device, const AttentionShape& shape, MatrixRef<const T> part,
                     Vector<const master_t<T>> part_lse, MatrixRef<master_t<T>> sum, Vector<master_t<T>> lse);

/// y += x, in the master type.
template <class T>
void accumulate_matrix(Device& device, MatrixRef<const T> x, MatrixRef<master_t<T>> y);

/// y = x, rounded to T.
template <class T>
void round_matrix(Device& device, MatrixRef<const master_t<T>> x, MatrixRef<T> y);

}  // namespace nanotron::kernels
