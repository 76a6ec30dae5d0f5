#include "nanotron/parallel/reducers/power_sgd.hpp"

#include <ranges>

#include "nanotron/base/random.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "nanotron/kernels/optim/orthogonalise.hpp"

namespace nanotron::parallel {
namespace {

using kernels::Op;

// Never more at a time: P of each unit and what it sends whole, then Q of each.
std::size_t most_requests(std::span<const LowRankUnit> units) {
  std::size_t requests = 0;
  for (const LowRankUnit& unit : units) requests += 2 + unit.whole.size();
  return requests;
}

}  // namespace

template <class T>
PowerSgd<T>::PowerSgd(model::Transformer<T>& model, const model::Section& section, const SumMemory<M>& memory,
                      comm::Group& replicas, Device& device, const SumRule& rule)
    : model_(&model),
      section_(section),
      memory_(memory),
      replicas_(&replicas),
      device_(&device),
      overlap_(rule.overlap),
      count_(model.table(), rule.micro_batches) {
  running_.reserve(most_requests(units()));
  forget();
}

template <class T>
std::span<const LowRankUnit> PowerSgd<T>::units() const {
  return std::span(memory_.low_rank.units)
      .subspan(static_cast<std::size_t>(section_.units.begin), static_cast<std::size_t>(section_.units.size()));
}

template <class T>
void PowerSgd<T>::forget() {
  const Range errors{units().front().errors.begin, units().back().errors.end};
  const Range q{units().front().q.begin, units().back().q.end};
  kernels::fill<M>(*device_, Vector<M>(memory_.error.data() + errors.begin, errors.size()), 0.0);
  kernels::fill_normal<M>(*device_, Vector<M>(memory_.q.data() + q.begin, q.size()), stream_id("PowerSGD"));
}

template <class T>
void PowerSgd<T>::begin_step() {
  kernels::fill<M>(*device_, Vector<M>(gradient(section_.flat.begin), section_.flat.size()), 0.0);
}

template <class T>
void PowerSgd<T>::start(M* data, index_t n) {
  running_.push_back(comm::start_all_reduce(*replicas_, data, static_cast<std::size_t>(n), comm::ReduceOp::sum,
                                            device_->stream()));
}

template <class T>
void PowerSgd<T>::project(const LowRankUnit& unit) {
  for (const LowRankMatrix& m : unit.matrices) {
    const index_t size = m.rows * m.columns;
    kernels::add<M>(*device_, Vector<const M>(gradient(m.gradient), size), Vector<M>(error(m).data(), size));
    kernels::gemm<M, M>(*device_, Op::none, Op::none, 1.0, error(m), q(m), 0.0, p(m));
  }
  start(memory_.p.data() + unit.p.begin, unit.p.size());
  for (const Range& range : unit.whole) start(gradient(range.begin), range.size());
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
  project(memory_.low_rank.units[static_cast<std::size_t>(unit)]);
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
  const Range& vectors = section_.vectors;
  model_->sum_partial_gradients(vectors);
  const Region region(device_->timers(), "gradient sum, exposed");
  const double begin = wall_seconds();
  if (!overlap_) {
    for (const LowRankUnit& unit : std::views::reverse(units())) project(unit);
  }
  start(gradient(vectors.begin), vectors.size());
  wait_for_all();
  for (const LowRankUnit& unit : units()) factorise(unit);
  wait_for_all();
  for (const LowRankUnit& unit : units()) multiply_out(unit);
  this->exposed_seconds_ += wall_seconds() - begin;
}

template class PowerSgd<double>;
template class PowerSgd<float>;
template class PowerSgd<bf16>;

}  // namespace nanotron::parallel
