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

#include <span>
#include <vector>

#include "nanotron/parallel/reducers/gradient_sum.hpp"

namespace nanotron::parallel {

template <class T>
class PowerSgd final : public GradientSum<T> {
 public:
  using M = master_t<T>;
  PowerSgd(model::Transformer<T>& model, const model::Section& section, const SumMemory<M>& memory, comm::Group& replicas,
           Device& device, const SumRule& rule);

  void begin_step() override;
  void begin(index_t) override {}
  void end(index_t unit) override;
  void finish() override;
  void forget() override;

 private:
  // Those of the section.
  std::span<const LowRankUnit> units() const;
  M* gradient(index_t offset) const { return model_->parameters().gradient.data() + offset; }
  Matrix<M> error(const LowRankMatrix& m) const { return Matrix<M>(memory_.error.data() + m.error, m.rows, m.columns); }
  Matrix<M> p(const LowRankMatrix& m) const { return Matrix<M>(memory_.p.data() + m.p, m.rows, memory_.low_rank.rank); }
  Matrix<M> q(const LowRankMatrix& m) const { return Matrix<M>(memory_.q.data() + m.q, m.columns, memory_.low_rank.rank); }
  void start(M* data, index_t n);
  /// D and the rank's part of P; sends it off, and what travels whole.
  void project(const LowRankUnit& unit);
  /// Behind the sum of P: E, and Q sent off.
  void factorise(const LowRankUnit& unit);
  void multiply_out(const LowRankUnit& unit);
  void wait_for_all();

  model::Transformer<T>* model_;
  model::Section section_;
  SumMemory<M> memory_;
  comm::Group* replicas_;
  Device* device_;
  bool overlap_;
  UnitCount count_;
  std::vector<comm::Request> running_;  // in the order in which they were started
  std::size_t done_ = 0;
};

}  // namespace nanotron::parallel
