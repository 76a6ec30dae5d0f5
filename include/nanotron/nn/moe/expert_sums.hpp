#pragma once

// When the parts that tensor-parallel ranks have of a mixture of experts become sums. Each has a part of what an expert
// makes of a row, cut over the expert's width, and of the gradients of a row's weight:
//
//   of tokens   a rank adds up its parts of a token's experts, and the hidden states sums these over the group: one sum
//   of a
//               token. Gradients of the router's logits stay parts.
//   of rows     what each expert makes of a row is summed over the group, then a token's experts are added: top_k sums
//               of a token, whose order does not follow the grid (precision%reproducible = 'layout'). The router has
//               its whole gradient on every rank.

#include <memory>

#include "nanotron/nn/linear/hidden_states.hpp"

namespace nanotron::nn {

/// Every function is collective over the tensor-parallel group.
struct ExpertSumSize {
  index_t rows = 0;           // of experts, on their way back to their tokens
  index_t shared_tokens = 0;  // of the shared expert; 0 without one
  index_t hidden = 0;
};

template <class T>
class ExpertSums {
 public:
  using M = master_t<T>;
  virtual ~ExpertSums() = default;

  /// Of so many tokens and rows: sums of a forward, or of a backward but for values, and those of values.
  virtual comm::StepTraffic sum_traffic(const HiddenStates<T>& states, const ExpertSumSize& size) const = 0;
  virtual comm::StepTraffic values_traffic(const ExpertSumSize& size) const = 0;

  /// The parts in y of the shared expert, in front of the rows of others.
  virtual void shared(Device& device, HiddenStates<T>& states, Matrix<T> y) = 0;
  /// What the experts here made of their rows, before it is handed to their tokens.
  virtual void rows(Device& device, Matrix<T> rows) = 0;
  /// Gradients of the tokens' weights.
  virtual void values(Device& device, Vector<M> values) = 0;
  /// y, to which all has been added; there when it has been waited for.
  [[nodiscard]] virtual Running tokens(Device& device, HiddenStates<T>& states, Matrix<T> y) = 0;
};

enum class SumsOf { tokens, rows };

/// tp must outlive it. Sums of rows want a hidden states that every rank holds whole.
template <class T>
std::unique_ptr<ExpertSums<T>> make_expert_sums(SumsOf sums, comm::Group& tp);

}  // namespace nanotron::nn
