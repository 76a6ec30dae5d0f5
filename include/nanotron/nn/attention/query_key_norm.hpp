#pragma once

// RMSNorm of the projected queries and keys, before their rotation:
//
//   of each head          (Henry et al. 2020; Qwen3)   a weight per element of a head, shared by all heads
//   of the projection     (OLMo 2)                     over all heads of the model, of queries and of keys; a weight
//   per
//                                                      element, sharded as the heads are. The sums of a token go over
//                                                      the tensor-parallel group

#include <memory>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/nn/attention/attention.hpp"
#include "nanotron/nn/norm/norm.hpp"

namespace nanotron::nn {

template <class T>
class QueryKeyNorm {
 public:
  virtual ~QueryKeyNorm() = default;

  /// For a micro-batch of so many tokens.
  virtual PassTraffic traffic(index_t tokens) const = 0;
  /// The queries and keys in act.qkv, with their biases, are normed in place.
  virtual void forward(Device& device, const AttentionGeometry<T>& geometry,
                       const AttentionActivations<T>& act) const = 0;
  /// work.dqkv: gradient of what is normed on entry, of what was projected on return. Accumulates weight gradients.
  virtual void backward(Device& device, const AttentionGeometry<T>& geometry, const AttentionActivations<T>& act,
                        const AttentionWorkspace<T>& work) const = 0;
};

/// Of the whole model's projections, if the norm goes over them; 0: over each head.
struct QueryKeyColumns {
  index_t query = 0, key = 0;
  SumOrder queries{};   // of the columns of queries here: the terms that this rank adds to the sums of a token
  SumOrder squares{};   // of those of keys, in the sum of forward
  SumOrder products{};  // the same in the sum of backward
  Range completed{};    // of keys: those whose gradient gets the term of the sum here
};

/// The gradients of the weights that all heads share. With a group, its ranks add their heads in backward, for each
/// segment of the tokens: a tree over segments of as many heads each; or, where `apart` is not 0, over single heads, as
/// many in the model. Null: each rank has a partial sum (model::PartialGradients).
struct HeadSum {
  comm::Group* group = nullptr;
  kernels::RowSegments segments{};
  HeadCounts apart{};
};

/// Elements of AttentionWorkspace::sums for `heads` query heads here, of `tokens` tokens: the sums of pieces
/// (rms_norm_workspace_size), and where heads are apart (token segments, query heads of the model, head_dim) behind
/// them. Does not use the group.
index_t head_norm_sums(Processor processor, index_t tokens, index_t heads, index_t head_dim, const HeadSum& sum);

/// The groups must outlive it.
template <class T>
std::shared_ptr<const QueryKeyNorm<T>> make_query_key_norm(const NormWeights<T>& query, const NormWeights<T>& key,
                                                           const QueryKeyColumns& columns, comm::Group& tp,
                                                           const HeadSum& sum);

}  // namespace nanotron::nn
