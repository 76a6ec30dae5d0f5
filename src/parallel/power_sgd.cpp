#include "nanotron/parallel/power_sgd.hpp"

#include "nanotron/base/random.hpp"
#include "nanotron/kernels/elementwise.hpp"
#include "nanotron/kernels/gemm.hpp"
#include "nanotron/kernels/orthogonalise.hpp"

namespace nanotron::parallel {
namespace {

using kernels::Op;

// Never more at a time: P of each unit and what it sends whole, then Q of each.
std::size_t most_requests(const LowRankPlan& plan) {
  std::size_t requests = 0;
  for (const LowRankUnit& unit : plan.units) requests += 2 + unit.whole.size();
  return requests;
}

}  // namespace

template <class T>
PowerSgd<T>::PowerSgd(model::Transformer<T>& model, const SumMemory<M>& memory, comm::Group& replicas, Device& device,
                      const SumRule& rule)
    : model_(&model),
      memory_(memory),
      replicas_(&replicas),
      device_(&device),
      overlap_(rule.overlap),
      count_(model.table(), rule.micro_batches) {
  running_.reserve(most_requests(memory_.low_rank));
  forget();
}

template <class T>
void PowerSgd<T>::forget() {
  kernels::fill<M>(*device_, memory_.error, 0.0);
  kernels::fill_normal<M>(*device_, memory_.q, stream_id("PowerSGD"));
}

template <class T>
void PowerSgd<T>::begin_step() {
  kernels::fill<M>(*device_, model_->parameters().gradient, 0.0);
}

template <class T>
void PowerSgd<T>::start(M* data, index_t n) {
  running_.push_back(comm::start_all_reduce(*replicas_, data, static_cast<std::size_t>(n), comm::ReduceOp::sum,
                                            device_->stream()));
}

template <class T>
void PowerSgd<T>::project(index_t unit) {
  const LowRankUnit& u = memory_.low_rank.units[static_cast<std::size_t>(unit)];
  for (const LowRankMatrix& m : u.matrices) {
    const index_t size = m.rows * m.columns;
    kernels::add<M>(*device_, Vector<const M>(gradient(m.gradient), size), Vector<M>(error(m).data(), size));
    kernels::gemm<M, M>(*device_, Op::none, Op::none, 1.0, error(m), q(m), 0.0, p(m));
  }
  start(memory_.p.data() + u.p.begin, u.p.size());
  for (const Range& range : u.whole) start(gradient(range.begin), range.size());
}

template <class T>
void PowerSgd<T>::factorise(const LowRankUnit& unit) {
  for (const LowRankMatrix& m : unit.matrices) {
    kernels::orthogonalise<M>(*device_, p(m));
    kernels::gemm<M, M>(*device_, Op::transpose, Op::none, 1.0, error(m), p(m), 0.0, q(m));
    kernels::gemm<M, M>(*device_, Op::none, Op::transpose, -1.0, p(m), q(m), 1.0, error(m));
  }
  start(memory_.q.data() + unit.q.begin, unit.q.size());
}

template <class T>
void PowerSgd<T>::multiply_out(const LowRankUnit& unit) {
  for (const LowRankMatrix& m : unit.matrices) {
    const Matrix<M> sum(gradient(m.gradient), m.rows, m.columns);
    kernels::gemm<M, M>(*device_, Op::none, Op::transpose, 1.0, p(m), q(m), 0.0, sum);
  }
}

template <class T>
void PowerSgd<T>::end(index_t unit) {
  if (!count_.add(unit)) return;
  model_->sum_partial_gradients(model_->table().units[static_cast<std::size_t>(unit)].range);
  if (!overlap_) return;
  const Region region(device_->timers(), "gradient sum, overlapped");
  project(unit);
  while (done_ < running_.size() && running_[done_].test()) ++done_;
}

template <class T>
void PowerSgd<T>::wait_for_all() {
  for (; done_ < running_.size(); ++done_) running_[done_].wait();
  running_.clear();
  done_ = 0;
}

template <class T>
void PowerSgd<T>::finish() {
  const Range& vectors = model_->table().vectors;
  const std::vector<LowRankUnit>& units = memory_.low_rank.units;
  model_->sum_partial_gradients(vectors);
  const Region region(device_->timers(), "gradient sum, exposed");
  const double begin = wall_seconds();
  if (!overlap_) {
    for (index_t u = static_cast<index_t>(units.size()) - 1; u >= 0; --u) project(u);
  }
  start(gradient(vectors.begin), vectors.size());
  wait_for_all();
  for (const LowRankUnit& unit : units) factorise(unit);
  wait_for_all();
  for (const LowRankUnit& unit : units) multiply_out(unit);
  this->exposed_seconds_ += wall_seconds() - begin;
}

template class PowerSgd<double>;
template class PowerSgd<float>;
template class PowerSgd<bf16>;

}  // namespace nanotron::parallel
