#pragma once

// Causal self-attention with grouped queries (Ainslie et al. 2023), rotary positions or none and, where the model
// has it, a norm over each query and key head (Henry et al. 2020; Qwen3). Heads are sharded over the
// tensor-parallel group, see nn/attention/heads.hpp.
//
//   q | k | v = n Wqkv^T (+ b)      q, k = rope(norm(q)), rope(norm(k))      a = attention(q, k, v)
//   y = a Wo^T, summed over the group (+ bo, once, after the sum)
//
// n, y and their gradients are rows of the hidden states; TensorParallelRegion gathers and reduces them. Functions that
// take a non-const TensorParallelRegion are collective over the tensor-parallel group.

#include "nanotron/kernels/norm/norm.hpp"
#include "nanotron/nn/attention/heads.hpp"
#include "nanotron/nn/attention/rotation.hpp"
#include "nanotron/nn/attention/token_batch.hpp"
#include "nanotron/nn/linear/tensor_parallel_region.hpp"
#include "nanotron/nn/pass_traffic.hpp"

namespace nanotron::nn {

/// Shared by all layers: sizes, and how positions act.
template <class T>
struct AttentionGeometry {
  HeadShard heads{};
  index_t head_dim = 0;
  double norm_eps = 0.0;
  index_t window = 0, document_stride = 0;  // as AttentionShape has them
  kernels::BackwardAlgorithm backward = kernels::BackwardAlgorithm::fastest;
  Rotation<T> rotation{};           // of queries and keys
  kernels::RowSegments segments{};  // of the sums in the head norms' gradients

  index_t query_columns() const { return heads.query.size() * head_dim; }
  index_t key_columns() const { return heads.key.size() * head_dim; }
  index_t qkv_columns() const { return query_columns() + 2 * key_columns(); }
  kernels::AttentionShape shape(index_t batch, index_t query_length, index_t key_length) const;
  // Columns of q | k | v.
  MatrixRef<T> query_of(const Matrix<T>& qkv) const { return MatrixRef<T>(qkv).column_block(0, query_columns()); }
  MatrixRef<T> key_of(const Matrix<T>& qkv) const {
    return MatrixRef<T>(qkv).column_block(query_columns(), key_columns());
  }
  MatrixRef<T> value_of(const Matrix<T>& qkv) const {
    return MatrixRef<T>(qkv).column_block(query_columns() + key_columns(), key_columns());
  }
  MatrixRef<T> query_key_of(const Matrix<T>& qkv) const {
    return MatrixRef<T>(qkv).column_block(0, query_columns() + key_columns());
  }
  MatrixRef<T> key_value_of(const Matrix<T>& qkv) const {
    return MatrixRef<T>(qkv).column_block(query_columns(), 2 * key_columns());
  }
};

/// KV cache for generation: keys and values of the tokens so far, (sequences x capacity, local key columns).
template <class T>
struct KeyValueCache {
  Matrix<T> keys{}, values{};
  index_t capacity = 0;  // tokens per sequence; 0: no cache
  index_t past = 0;      // of them in the cache
};

/// Views of one layer's activations, saved from forward for backward. tokens = sequences x length.
template <class T>
struct AttentionActivations {
  using M = master_t<T>;
  Matrix<T> qkv;                  // (tokens, q | k | v) after norm and rotation
  Matrix<T> raw_qk;               // (tokens, q | k) before the head norms; empty without them
  Matrix<M> query_rstd;           // (tokens, local query heads); empty without head norms
  Matrix<M> key_rstd;             // (tokens, local key heads); empty without head norms
  Matrix<T> out;                  // (tokens, q)
  Vector<M> lse;                  // (sequences x query heads x length), of the tokens and heads in AttentionCore
  Matrix<T> all_qkv, all_out;     // what AttentionCore saves of tokens of other ranks, see CoreSizes
  OperandCodes of_input, of_out;  // of n and of out
  KeyValueCache<T> cache{};       // of generation
};

/// Shared by all layers; each overwrites it.
template <class T>
struct AttentionWorkspace {
  using M = master_t<T>;
  Matrix<T> dqkv;           // (tokens, q | k | v)
  Matrix<T> dout;           // (tokens, q)
  Vector<std::byte> tiles;  // kernels::attention_workspace_bytes
  Vector<M> sums;           // workspace of the bias and head norm gradients
};

/// Weights and gradients of the head norms; empty without them.
template <class T>
struct HeadNorms {
  using M = master_t<T>;
  Vector<const M> query, key;
  Vector<M> query_gradient, key_gradient;
};

template <class T>
class AttentionCore;  // nn/attention/attention_core.hpp: attention(q, k, v) over the tokens of all ranks

template <class T>
class Attention {
 public:
  using M = master_t<T>;

  /// core must outlive it; layers may share one.
  Attention(const AttentionGeometry<T>& geometry, const Linear<T>& qkv, const Linear<T>& out, const HeadNorms<T>& norms,
            AttentionCore<T>& core);

  PassTraffic traffic(const TensorParallelRegion<T>& region) const;

  /// n -> y (rows of the hidden states, hidden), overwritten; complete after wait() and add_output_bias(). addend: of
  /// y's shape, added to y; empty if nothing is added, as with several tensor-parallel ranks.
  [[nodiscard]] Pending forward(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                const BlockInput<T>& n, const AttentionActivations<T>& act,
                                const AttentionWorkspace<T>& work, Matrix<const T> addend, Matrix<T> y) const;
  /// Whether forward takes an addend: the bias would be added to the rounded sum.
  bool adds() const { return out_.bias().extent(0) == 0; }
  /// y += bo, after wait().
  void add_output_bias(Device& device, const TensorParallelRegion<T>& region, Matrix<T> y) const {
    out_.add_bias(device, region.token_rows(y));
  }

  /// dy (rows of the hidden states, hidden) -> work.dqkv, overwritten. Accumulates the gradients of the head norms, of
  /// no other weights. Returns dy of all tokens, see TensorParallelRegion::all_gather_gemm.
  Matrix<const T> backward_inside(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                  Matrix<const T> dy, const AttentionActivations<T>& act,
                                  const AttentionWorkspace<T>& work) const;

  /// work.dqkv -> dn (rows of the hidden states, hidden), overwritten. dn is complete after wait().
  [[nodiscard]] Pending backward_input(Device& device, TensorParallelRegion<T>& region,
                                       const AttentionWorkspace<T>& work, Matrix<T> dn) const;

  /// Accumulate the weight gradients: of the output projection from dy (tokens, hidden), any time after forward; of q,
  /// k, v from n (tokens, hidden) and dqkv.
  void backward_output_weight(Device& device, Matrix<const T> dy, const AttentionActivations<T>& act,
                              const AttentionWorkspace<T>& work) const;
  void backward_input_weight(Device& device, Matrix<const T> n, Matrix<const T> dqkv,
                             const AttentionActivations<T>& act, const AttentionWorkspace<T>& work) const;

 private:
  void finish_query_key_value(Device& device, const TokenBatch& batch, const AttentionActivations<T>& act) const;
  bool has_head_norms() const { return norms_.query.extent(0) > 0; }
  AttentionGeometry<T> geometry_;
  Linear<T> qkv_, out_;
  HeadNorms<T> norms_;
  AttentionCore<T>* core_;
};

}  // namespace nanotron::nn
