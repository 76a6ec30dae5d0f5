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
};

/// The gradients of the weights that all heads share. With a group, its ranks add their heads in backward, for each
/// segment of the tokens; null: each rank has a partial sum (model::PartialGradients).
struct HeadSum {
  comm::Group* group = nullptr;
  kernels::RowSegments segments{};
};

/// The groups must outlive it.
template <class T>
std::shared_ptr<const QueryKeyNorm<T>> make_query_key_norm(const NormWeights<T>& query, const NormWeights<T>& key,
                                                           const QueryKeyColumns& columns, comm::Group& tp,
                                                           const HeadSum& sum);

}  // namespace nanotron::nn
