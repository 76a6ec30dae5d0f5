#pragma once

// Attention with grouped queries (Ainslie et al. 2023), rotary positions or none and, where the model has it, a norm
// of queries and keys:
//
//   q | k | v = n Wqkv^T (+ b)      q, k = rope(norm(q)), rope(norm(k))      a = attention(q, k, v)
//   y = a Wo^T, summed over the group (+ bo, once, after the sum)

#include "nanotron/nn/attention/query_key_norm.hpp"

namespace nanotron::nn {

template <class T>
class AttentionCore;  // nn/attention/attention_core.hpp: attention(q, k, v) over the tokens of all ranks

template <class T>
class GroupedQueryAttention final : public Attention<T> {
 public:
  using M = master_t<T>;

  /// norm: null without one. core must outlive it; layers may share one.
  GroupedQueryAttention(const AttentionGeometry<T>& geometry, const Linear<T>& qkv, const Linear<T>& out,
                        std::shared_ptr<const QueryKeyNorm<T>> norm, AttentionCore<T>& core);

  PassTraffic traffic(const TensorParallelRegion<T>& region) const override;
  comm::StepTraffic regather_traffic(const TensorParallelRegion<T>& region) const override {
    return region.regather_traffic();
  }

  Pending forward(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region, const BlockInput<T>& n,
                  const AttentionActivations<T>& act, const AttentionWorkspace<T>& work, Matrix<const T> addend,
                  Matrix<T> y) const override;
  bool adds() const override { return out_.bias().extent(0) == 0; }
  void add_output_bias(Device& device, const TensorParallelRegion<T>& region, Matrix<T> y) const override {
    out_.add_bias(device, region.token_rows(y));
  }

  Matrix<const T> backward_inside(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                  Matrix<const T> dy, const AttentionActivations<T>& act,
                                  const AttentionWorkspace<T>& work) const override;
  Pending backward_input(Device& device, TensorParallelRegion<T>& region, const AttentionActivations<T>& act,
                         const AttentionWorkspace<T>& work, Matrix<T> dn) const override;
  /// qkv <- d qkv.
  void keep_gradients(Device& device, const AttentionActivations<T>& act,
                      const AttentionWorkspace<T>& work) const override;

  /// n.
  PendingGather<T> start_regather(Device& device, TensorParallelRegion<T>& region, const BlockInput<T>& n,
                                  const AttentionActivations<T>&) const override {
    return region.start_regather(device, n);
  }
  void backward_output_weight(Device& device, Matrix<const T> dy, const AttentionActivations<T>& act,
                              const AttentionWorkspace<T>& work) const override;
  void backward_input_weight(Device& device, const BlockInput<T>& n, Matrix<const T> gathered, GradientsIn gradients,
                             const AttentionActivations<T>& act, const AttentionWorkspace<T>& work) const override;

 private:
  void finish_query_key_value(Device& device, const TokenBatch& batch, const AttentionActivations<T>& act) const;
  AttentionGeometry<T> geometry_;
  Linear<T> qkv_, out_;
  std::shared_ptr<const QueryKeyNorm<T>> norm_;
  AttentionCore<T>* core_;
};

}  // namespace nanotron::nn
