#pragma once

// PowerSGD (Vogels, Karimireddy and Jaggi 2019, algorithms 1 and 2). With the gradient G_w and the error E_w of
// replica w, and Q of the step before:
//
//   D_w = G_w + E_w                       what is to be sent
//   P   = orthogonalise(sum_w D_w Q)      all-reduced
//   Q_w = D_w^T P
//   E_w = D_w - P Q_w^T                   what is not: it comes with the next step
//   Q   = sum_w Q_w                       all-reduced
//   sum of gradients = P Q^T
//
// sum_w E_w + P Q^T = sum_w D_w: nothing is lost, only late. E_w is here what P leaves of D_w itself rather than of the
// mean; their sums, on which all that follows depends, are the same. The first Q is random.

#include "nanotron/parallel/reducers/gradient_reducer.hpp"
#include "nanotron/parallel/reducers/power_sgd/low_rank.hpp"

namespace nanotron::parallel {

template <class T>
class PowerSgdReducer final : public GradientReducer<T> {
 public:
  using M = master_t<T>;
  explicit PowerSgdReducer(const ReducerContext<T>& context);

  void reset() override;
  CarriedState<M> carried() const override;

 private:
  void start_step() override;
  void completed(index_t unit) override;
  void finish_step() override;
  comm::StepTraffic strategy_traffic() const override;

  M* at(index_t offset) const { return this->model().parameters().gradient.data() + offset; }
  Matrix<M> error(const LowRankMatrix& m) const { return Matrix<M>(error_.data() + m.error, m.rows, m.columns); }
  Matrix<M> p(const LowRankMatrix& m) const { return Matrix<M>(p_.data() + m.p, m.rows, plan_.rank); }
  Matrix<M> q(const LowRankMatrix& m) const { return Matrix<M>(q_.data() + m.q, m.columns, plan_.rank); }
  void start(M* data, index_t n);
  /// D and the rank's part of P; sends it, and what travels whole.
  void project(const LowRankUnit& unit);
  /// After the sum of P: E, and Q is sent.
  void factorise(const LowRankUnit& unit);
  void multiply_out(const LowRankUnit& unit);
  void wait_for_all();

  LowRankPlan plan_;
  Vector<M> error_, p_, q_;  // error and q are carried from step to step
  std::vector<comm::Request> running_;  // in the order in which they were started
  std::size_t done_ = 0;
};

}  // namespace nanotron::parallel
