#pragma once

// When the partial sums of tensor-parallel ranks in a mixture of experts are reduced. The width of an expert is
// sharded, so each rank has a partial sum of every expert's output row and of the gradient of every row's weight:
//
//   of tokens   each rank adds its partial rows of a token's experts; TensorParallelRegion reduces the result over the
//               group: one sum per token. Gradients of the router's logits stay partial sums.
//   of rows     each expert's output row is all-reduced over the group, then a token's experts are added: top_k sums
//               per token, whose order does not depend on the grid (precision%reproducible = 'layout'). Every rank has
//               the whole gradient of the router's logits.
//   of slices   with whole experts (parallel%expert_tp = 1): each rank has the sums of its slice of the tokens, and all
//               ranks get those of the others. The result is that of rows, bit for bit.

#include <memory>

#include "nanotron/nn/linear/tensor_parallel_region.hpp"

namespace nanotron::nn {

struct ExpertSumSize {
  index_t tokens = 0, assignments = 0;
  index_t rows = 0;           // output rows of the experts
  index_t shared_tokens = 0;  // of the shared expert; 0 without one
  index_t hidden = 0;
};

/// All but the traffic are collective over the tensor-parallel group.
template <class T>
class ExpertSums {
 public:
  using M = master_t<T>;
  virtual ~ExpertSums() = default;

  /// For this many tokens and rows: all sums of a forward, or of a backward except those of values; the sums of values.
  virtual comm::StepTraffic sum_traffic(const TensorParallelRegion<T>& region, const ExpertSumSize& size) const = 0;
  virtual comm::StepTraffic values_traffic(const ExpertSumSize& size) const = 0;

  /// The shared expert's output in y, before the rows of other experts are added to it.
  virtual void shared(Device& device, TensorParallelRegion<T>& region, Matrix<T> y) = 0;
  /// Gradients of its weights.
  virtual void shared_values(Device& device, Vector<M> values) = 0;
  /// The output rows of the experts here, and the gradients of their weights, before combine.
  virtual void rows(Device& device, Matrix<T> rows) = 0;
  virtual void row_values(Device& device, Vector<M> values) = 0;
  /// Gradients of the weights of all assignments after combine, of which this rank has sent `here`.
  virtual void token_values(Device& device, const Range& here, Vector<M> values) = 0;
  /// y, to which all experts have been added; this rank has sent the tokens `here`. y is complete after wait().
  [[nodiscard]] virtual Pending tokens(Device& device, TensorParallelRegion<T>& region, const Range& here,
                                       Matrix<T> y) = 0;
};

enum class SumsOf { tokens, rows, slices };

/// tp must outlive it.
template <class T>
std::unique_ptr<ExpertSums<T>> make_expert_sums(SumsOf sums, comm::Group& tp);

}  // namespace nanotron::nn
