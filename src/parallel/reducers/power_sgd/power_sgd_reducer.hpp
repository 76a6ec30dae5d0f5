#pragma once

// PowerSGD (Vogels, Karimireddy and Jaggi 2019, algorithms 1 and 2). With the gradient G_w and the error E_w of
// data-parallel rank w, and Q of the step before:
//
//   D_w = G_w + E_w
//   P   = orthogonalise(sum_w D_w Q)      all-reduce
//   Q_w = D_w^T P
//   E_w = D_w - P Q_w^T                   error feedback, added in the next step
//   Q   = sum_w Q_w                       all-reduce
//   reduced gradient = P Q^T
//
// sum_w E_w + P Q^T = sum_w D_w: what the approximation leaves out is delayed, not lost. The paper subtracts P times
// the mean of Q_w instead of P Q_w^T; sum_w E_w, on which all later steps depend, is the same. The first Q is random.

#include "nanotron/parallel/reducers/gradient_reducer.hpp"
#include "nanotron/parallel/reducers/power_sgd/low_rank.hpp"

namespace nanotron::parallel {

template <class T>
class PowerSgdReducer final : public GradientReducer<T> {
 public:
  using M = master_t<T>;
  explicit PowerSgdReducer(const ReducerContext<T>& context);

  void reset() override;
  PersistentState<M> persistent_state() const override;

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
  /// error <- D_w, p <- D_w Q; starts the all-reduces of p and of what is not compressed.
  void project(const LowRankUnit& unit);
  /// After the all-reduce of p: P, Q_w and E_w; starts the all-reduce of q.
  void factorise(const LowRankUnit& unit);
  void multiply_out(const LowRankUnit& unit);
  void wait_for_all();

  LowRankPlan plan_;
  Vector<M> error_, p_, q_;             // error_ and q_ are kept between steps
  std::vector<comm::Request> running_;  // in the order of their start
  std::size_t done_ = 0;
};

}  // namespace nanotron::parallel
