#pragma once

// Causal self-attention of a decoder layer: from the normed rows n of the hidden states to y, summed over the
// tensor-parallel group. Kinds: grouped queries (nn/attention/grouped_query_attention.hpp). Heads are sharded over the
// group, see nn/attention/heads.hpp.
//
// n, y and their gradients are rows of the hidden states; TensorParallelRegion gathers and reduces them. Functions that
// take a non-const TensorParallelRegion are collective over the tensor-parallel group.

#include <memory>

#include "nanotron/kernels/norm/norm.hpp"
#include "nanotron/nn/attention/denominator_term.hpp"
#include "nanotron/nn/attention/heads.hpp"
#include "nanotron/nn/attention/rotation.hpp"
#include "nanotron/nn/attention/token_batch.hpp"
#include "nanotron/nn/linear/tensor_parallel_region.hpp"
#include "nanotron/nn/pass_traffic.hpp"

namespace nanotron::nn {

/// Of a layer: sizes, which are those of all layers, and how positions act.
template <class T>
struct AttentionGeometry {
  HeadShard heads{};
  index_t head_dim = 0;
  double norm_eps = 0.0;
  index_t window = 0, document_stride = 0;  // as AttentionShape has them
  kernels::BackwardAlgorithm backward = kernels::BackwardAlgorithm::fastest;
  kernels::ScoreMap scores{};
  kernels::RandomMask mask{};                               // of the probabilities
  Rotation<T> rotation{};                                   // of queries and keys
  std::shared_ptr<const DenominatorTerm<T>> denominator{};  // null: the keys alone
  index_t token_segments = 1;                               // of the sums in gradients of norms over a projection

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

/// What a kind of attention saves and overwrites in addition (nn/attention/latent_memory.hpp).
template <class T>
struct CompressedActivations;
template <class T>
struct CompressedWorkspace;

/// Views of one layer's activations, saved from forward for backward. tokens = sequences x length.
template <class T>
struct AttentionActivations {
  using M = master_t<T>;
  Matrix<T> qkv;                   // (tokens, q | k | v) after norm and rotation
  Matrix<T> raw_qk;                // (tokens, q | k) before their norm; empty without it, as the next two
  Matrix<M> query_rstd, key_rstd;  // (tokens, local query or key heads), or as QueryKeyNorm says
  Matrix<T> out;                   // (tokens, q)
  Vector<M> lse;                   // (sequences x query heads x length), of the tokens and heads in AttentionCore
  Matrix<T> all_qkv, all_out;      // what AttentionCore saves of tokens of other ranks, see CoreSizes
  OperandCodes of_input, of_out;   // of n and of out
  KeyValueCache<T> cache{};        // of generation
  std::shared_ptr<const CompressedActivations<T>> compressed{};  // null without
};

/// Shared by all layers; each overwrites it.
template <class T>
struct AttentionWorkspace {
  using M = master_t<T>;
  Matrix<T> dqkv;                                              // (tokens, q | k | v)
  Matrix<T> dout;                                              // (tokens, q)
  Vector<std::byte> tiles;                                     // kernels::attention_workspace_bytes
  Vector<M> sums;                                              // workspace of the bias and norm gradients
  std::shared_ptr<const CompressedWorkspace<T>> compressed{};  // null without
};

/// Where backward left the gradients of q, k and v: in the workspace, or in a layer's activations (keep_gradients).
enum class GradientsIn { workspace, activations };

template <class T>
class Attention {
 public:
  virtual ~Attention() = default;

  virtual PassTraffic traffic(const TensorParallelRegion<T>& region) const = 0;
  /// Bytes of one start_regather.
  virtual comm::StepTraffic regather_traffic(const TensorParallelRegion<T>& region) const = 0;

  /// n -> y (rows of the hidden states, hidden), overwritten; complete after wait() and add_output_bias(). addend: of
  /// y's shape, added to y; empty if nothing is added, as with several tensor-parallel ranks.
  [[nodiscard]] virtual Pending forward(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                        const BlockInput<T>& n, const AttentionActivations<T>& act,
                                        const AttentionWorkspace<T>& work, Matrix<const T> addend,
                                        Matrix<T> y) const = 0;
  /// Whether forward takes an addend: not if a bias would be added to the rounded sum.
  virtual bool adds() const = 0;
  /// y += the output's bias, after wait().
  virtual void add_output_bias(Device& device, const TensorParallelRegion<T>& region, Matrix<T> y) const = 0;

  /// dy (rows of the hidden states, hidden) -> work.dqkv, overwritten. Accumulates no gradients of matrices. Returns dy
  /// of all tokens, see TensorParallelRegion::all_gather_gemm.
  virtual Matrix<const T> backward_inside(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                          Matrix<const T> dy, const AttentionActivations<T>& act,
                                          const AttentionWorkspace<T>& work) const = 0;

  /// work.dqkv -> dn (rows of the hidden states, hidden), overwritten. dn is complete after wait().
  [[nodiscard]] virtual Pending backward_input(Device& device, TensorParallelRegion<T>& region,
                                               const AttentionActivations<T>& act, const AttentionWorkspace<T>& work,
                                               Matrix<T> dn) const = 0;
  /// After backward_input: overwrites activations with what the functions below read of the workspace.
  virtual void keep_gradients(Device& device, const AttentionActivations<T>& act,
                              const AttentionWorkspace<T>& work) const = 0;

  /// All tokens of what backward_input_weight reads, as TensorParallelRegion::start_regather.
  [[nodiscard]] virtual PendingGather<T> start_regather(Device& device, TensorParallelRegion<T>& region,
                                                        const BlockInput<T>& n,
                                                        const AttentionActivations<T>& act) const = 0;
  /// Accumulate the weight gradients: of the output projection from dy (tokens, hidden), any time after forward; of the
  /// others after backward_input, from what start_regather returned and from n.
  virtual void backward_output_weight(Device& device, Matrix<const T> dy, const AttentionActivations<T>& act,
                                      const AttentionWorkspace<T>& work) const = 0;
  virtual void backward_input_weight(Device& device, const BlockInput<T>& n, Matrix<const T> gathered,
                                     GradientsIn gradients, const AttentionActivations<T>& act,
                                     const AttentionWorkspace<T>& work) const = 0;
};

}  // namespace nanotron::nn
