#pragma once

// Multi-head latent attention (MLA; DeepSeek-V2, 2024, section 2.1): queries, keys and values are computed from
// compressed tokens, and a part of the keys, which all heads share, carries the positions:
//
//   c_q = norm(n Wqa^T)      c_kv | k_rope = n Wkva^T      c_kv <- norm(c_kv)
//   q_h = c_q Wqb_h^T        k_h | v_h = c_kv Wkvb_h^T     q_h, k_h = [nope | R rope]    (kernels/attention/latent.hpp)
//   a_h = attention(q_h, k_h, v_h)                         y = a Wo^T, summed over the group
//
// Tensor parallel: the ranks share the heads. The down projections Wqa, Wkva and the norms are replicated. They process
// the rows of the hidden states, so with sequence-parallel hidden states the group gathers compressed tokens, which are
// narrower than n, and sums their gradients; those of Wqa, Wkva and the norms are then partial sums, as of other norms.
//
// Generation caches c_kv | R k_rope of each token only. Wkvb is absorbed: with its rows K_h of keys and V_h of values,
//
//   q_h . k_h = (q_nope,h K_h) . c_kv + (R q_rope,h) . (R k_rope)      a_h = (sum_j p_j c_kv,j) V_h^T
//
// which is attention with one key head, whose values are the first columns of its keys.

#include "nanotron/nn/attention/attention.hpp"
#include "nanotron/nn/attention/latent_memory.hpp"
#include "nanotron/nn/norm/norm.hpp"

namespace nanotron::nn {

template <class T>
class AttentionCore;  // nn/attention/attention_core.hpp

template <class T>
struct LatentParts {
  Linear<T> down;   // Wqa, Wkva
  Linear<T> query;  // Wqb; without compressed queries Wq, of n
  Linear<T> key_value, out;
  NormWeights<T> query_norm{}, key_value_norm{};
  SumOrder tokens{};                      // of the sums over tokens in weight gradients
  SumOrder hidden_rows{};                 // the same of `down`, which has only the rows of the hidden states here
  kernels::RowSegments norm_segments{};   // of the norms' gradients
  index_t head_segments = 1;              // of the sum over heads in the gradient of k_rope
  TensorParallelRegion<T>* compressed{};  // of compressed tokens; outlives the layer
};

template <class T>
class LatentAttention final : public Attention<T> {
 public:
  using M = master_t<T>;

  /// core must outlive it; layers may share one.
  LatentAttention(const AttentionGeometry<T>& geometry, const LatentSizes& sizes, const LatentParts<T>& parts,
                  AttentionCore<T>& core)
      : geometry_(geometry), sizes_(sizes), parts_(parts), core_(&core) {}

  PassTraffic traffic(const TensorParallelRegion<T>& region) const override;
  comm::StepTraffic regather_traffic(const TensorParallelRegion<T>& region) const override;

  Pending forward(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region, const BlockInput<T>& n,
                  const AttentionActivations<T>& act, const AttentionWorkspace<T>& work, Matrix<const T> addend,
                  Matrix<T> y) const override;
  bool adds() const override { return parts_.out.bias().extent(0) == 0; }
  void add_output_bias(Device& device, const TensorParallelRegion<T>& region, Matrix<T> y) const override {
    parts_.out.add_bias(device, region.token_rows(y));
  }

  /// Also the gradients of the projections' outputs, in the workspace.
  Matrix<const T> backward_inside(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                  Matrix<const T> dy, const AttentionActivations<T>& act,
                                  const AttentionWorkspace<T>& work) const override;
  /// Accumulates the gradients of the norms.
  Pending backward_input(Device& device, TensorParallelRegion<T>& region, const AttentionActivations<T>& act,
                         const AttentionWorkspace<T>& work, Matrix<T> dn) const override;
  /// qkv <- gradients of the projections' outputs, raw <- its gradient.
  void keep_gradients(Device& device, const AttentionActivations<T>& act,
                      const AttentionWorkspace<T>& work) const override;

  /// The compressed tokens; without compressed queries n.
  PendingGather<T> start_regather(Device& device, TensorParallelRegion<T>& region, const BlockInput<T>& n,
                                  const AttentionActivations<T>& act) const override;
  void backward_output_weight(Device& device, Matrix<const T> dy, const AttentionActivations<T>& act,
                              const AttentionWorkspace<T>& work) const override;
  void backward_input_weight(Device& device, const BlockInput<T>& n, Matrix<const T> gathered, GradientsIn gradients,
                             const AttentionActivations<T>& act, const AttentionWorkspace<T>& work) const override;

 private:
  bool compresses_queries() const { return sizes_.query_rank > 0; }
  kernels::LatentRotation<T> rotation(const TokenBatch& batch) const;
  void compress(Device& device, const BlockInput<T>& n, const CompressedActivations<T>& c) const;
  void project_query(Device& device, TensorParallelRegion<T>& region, const BlockInput<T>& n,
                     Matrix<const T> compressed, Matrix<T> query) const;
  Matrix<const T> values(Device& device, const Matrix<T>& out, const CompressedWorkspace<T>& work) const;
  void absorbed(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region, const BlockInput<T>& n,
                const AttentionActivations<T>& act, const CompressedWorkspace<T>& work) const;
  void fill_cache(Device& device, const TokenBatch& batch, const CompressedActivations<T>& c,
                  const KeyValueCache<T>& cache) const;
  void norm_backward(Device& device, const CompressedActivations<T>& c, const AttentionWorkspace<T>& work) const;

  AttentionGeometry<T> geometry_;
  LatentSizes sizes_;
  LatentParts<T> parts_;
  AttentionCore<T>* core_;
};

}  // namespace nanotron::nn
