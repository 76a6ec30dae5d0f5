#include "power_sgd_reducer.hpp"

#include <fmt/format.h>

#include "nanotron/base/random.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "nanotron/kernels/optim/orthogonalise.hpp"

namespace nanotron::parallel {
namespace {

using kernels::Op;

// Upper bound of requests in flight: P and uncompressed ranges of all units, and 1-D parameters; later Q of all units.
std::size_t max_requests(const std::vector<LowRankUnit>& units) {
  std::size_t requests = 0;
  for (const LowRankUnit& unit : units) requests += 2 + unit.whole.size();
  return requests;
}

}  // namespace

template <class T>
PowerSgdReducer<T>::PowerSgdReducer(const ReducerContext<T>& c)
    : GradientReducer<T>(c, {.micro_batches = ReduceWhen::all_of_step}),
      plan_(low_rank_plan(c.model.table(), c.section, c.config.parallel.powersgd_rank)),
      error_(c.arena.template take<M>(MemoryKind::gradients, plan_.errors)),
      p_(c.arena.template take<M>(MemoryKind::workspace, plan_.p)),
      q_(c.arena.template take<M>(MemoryKind::gradients, plan_.q)) {
  running_.reserve(max_requests(plan_.units));
}

template <class T>
void PowerSgdReducer<T>::reset() {
  kernels::fill<M>(this->device(), error_, 0.0);
  kernels::fill_normal<M>(this->device(), q_, stream_id("PowerSGD"));
}

template <class T>
PersistentState<master_t<T>> PowerSgdReducer<T>::persistent_state() const {
  return {.layout = fmt::format("powersgd_rank {}", plan_.rank),
          .digest = low_rank_digest(this->table(), plan_.rank),
          .values = {{"error", error_}, {"q", q_}}};
}

template <class T>
comm::StepTraffic PowerSgdReducer<T>::strategy_traffic() const {
  const index_t bytes = low_rank_elements(plan_, this->section()) * static_cast<index_t>(sizeof(M));
  return {.data_parallel = comm::all_reduce_bytes(bytes, this->data().size())};
}

template <class T>
void PowerSgdReducer<T>::start_step() {
  this->clear(this->model().parameters().layouts.gradient);
}

template <class T>
void PowerSgdReducer<T>::start(M* data, index_t n) {
  running_.push_back(comm::start_all_reduce(this->data(), data, static_cast<std::size_t>(n), comm::ReduceOp::sum,
                                            this->device().stream()));
}

template <class T>
void PowerSgdReducer<T>::project(const LowRankUnit& unit) {
  for (const LowRankMatrix& m : unit.matrices) {
    const index_t size = m.rows * m.columns;
    kernels::add<M>(this->device(), Vector<const M>(at(m.gradient), size), Vector<M>(error(m).data(), size));
    kernels::gemm<M, M>(this->device(), Op::none, Op::none, 1.0, error(m), q(m), 0.0, p(m));
  }
  start(p_.data() + unit.p.begin, unit.p.size());
  for (const Range& range : unit.whole) start(at(range.begin), range.size());
}

template <class T>
void PowerSgdReducer<T>::factorise(const LowRankUnit& unit) {
  for (const LowRankMatrix& m : unit.matrices) {
    kernels::orthogonalise<M>(this->device(), p(m));
    kernels::gemm<M, M>(this->device(), Op::transpose, Op::none, 1.0, error(m), p(m), 0.0, q(m));
    kernels::gemm<M, M>(this->device(), Op::none, Op::transpose, -1.0, p(m), q(m), 1.0, error(m));
  }
  start(q_.data() + unit.q.begin, unit.q.size());
}

template <class T>
void PowerSgdReducer<T>::multiply_out(const LowRankUnit& unit) {
  for (const LowRankMatrix& m : unit.matrices) {
    const Matrix<M> sum(at(m.gradient), m.rows, m.columns);
    kernels::gemm<M, M>(this->device(), Op::none, Op::transpose, 1.0, p(m), q(m), 0.0, sum);
  }
}

template <class T>
void PowerSgdReducer<T>::completed(index_t unit) {
  if (!this->overlap()) return;
  const Region region(this->device().timers(), "gradient reduction, overlapped");
  project(plan_.units[static_cast<std::size_t>(unit - this->section().units.begin)]);
  while (done_ < running_.size() && running_[done_].test()) ++done_;
}

template <class T>
void PowerSgdReducer<T>::wait_for_all() {
  for (; done_ < running_.size(); ++done_) running_[done_].wait();
  running_.clear();
  done_ = 0;
}

template <class T>
void PowerSgdReducer<T>::finish_step() {
  const typename GradientReducer<T>::Exposed exposed(*this);
  const Range& params_1d = this->section().params_1d;
  if (!this->overlap()) {
    for (auto unit = plan_.units.rbegin(); unit != plan_.units.rend(); ++unit) project(*unit);
  }
  start(at(params_1d.begin), params_1d.size());
  wait_for_all();
  for (const LowRankUnit& unit : plan_.units) factorise(unit);
  wait_for_all();
  for (const LowRankUnit& unit : plan_.units) multiply_out(unit);
}

template class PowerSgdReducer<double>;
template class PowerSgdReducer<float>;
template class PowerSgdReducer<bf16>;

}  // namespace nanotron::parallel
