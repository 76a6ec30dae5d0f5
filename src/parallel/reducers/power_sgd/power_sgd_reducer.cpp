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

#include <fmt/format.h>

#include <memory>

#include "nanotron/base/random.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "nanotron/kernels/optim/orthogonalise.hpp"
#include "nanotron/parallel/reducers/power_sgd/low_rank.hpp"
#include "parallel/reducers/strategies.hpp"

namespace nanotron::parallel {
namespace {

using kernels::Op;

// Upper bound of requests in flight: P and uncompressed ranges of all units, and 1-D parameters; later Q of all units.
std::size_t max_requests(const std::vector<LowRankUnit>& units) {
  std::size_t requests = 0;
  for (const LowRankUnit& unit : units) requests += 2 + unit.whole.size();
  return requests;
}

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

  Vector<M> gradient_of(const LowRankMatrix& m) const {
    return this->gradient({m.gradient, m.gradient + m.rows * m.columns});
  }
  Matrix<M> error(const LowRankMatrix& m) const { return Matrix<M>(error_.data() + m.error, m.rows, m.columns); }
  Matrix<M> p(const LowRankMatrix& m) const { return Matrix<M>(p_.data() + m.p, m.rows, plan_.rank); }
  Matrix<M> q(const LowRankMatrix& m) const { return Matrix<M>(q_.data() + m.q, m.columns, plan_.rank); }
  void start(const Vector<M>& values);
  void start(const Vector<M>& buffer, const Range& part) { start(Vector<M>(buffer.data() + part.begin, part.size())); }
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
void PowerSgdReducer<T>::start(const Vector<M>& values) {
  running_.push_back(comm::start_all_reduce(this->data(), values.data(), elements_of(values), comm::ReduceOp::sum,
                                            this->device().stream()));
}

template <class T>
void PowerSgdReducer<T>::project(const LowRankUnit& unit) {
  for (const LowRankMatrix& m : unit.matrices) {
    const Vector<M> gradient = gradient_of(m);
    kernels::add<M>(this->device(), gradient, Vector<M>(error(m).data(), gradient.size()));
    kernels::gemm<M, M>(this->device(), Op::none, Op::none, 1.0, error(m), q(m), 0.0, p(m));
  }
  start(p_, unit.p);
  for (const Range& range : unit.whole) start(this->gradient(range));
}

template <class T>
void PowerSgdReducer<T>::factorise(const LowRankUnit& unit) {
  for (const LowRankMatrix& m : unit.matrices) {
    kernels::orthogonalise<M>(this->device(), p(m));
    kernels::gemm<M, M>(this->device(), Op::transpose, Op::none, 1.0, error(m), p(m), 0.0, q(m));
    kernels::gemm<M, M>(this->device(), Op::none, Op::transpose, -1.0, p(m), q(m), 1.0, error(m));
  }
  start(q_, unit.q);
}

template <class T>
void PowerSgdReducer<T>::multiply_out(const LowRankUnit& unit) {
  for (const LowRankMatrix& m : unit.matrices) {
    const Matrix<M> sum(gradient_of(m).data(), m.rows, m.columns);
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
  if (!this->overlap()) {
    for (auto unit = plan_.units.rbegin(); unit != plan_.units.rend(); ++unit) project(*unit);
  }
  start(this->gradient(this->section().params_1d));
  wait_for_all();
  for (const LowRankUnit& unit : plan_.units) factorise(unit);
  wait_for_all();
  for (const LowRankUnit& unit : plan_.units) multiply_out(unit);
}

}  // namespace

template <class T>
std::unique_ptr<GradientReducer<T>> make_power_sgd(const ReducerContext<T>& context) {
  return std::make_unique<PowerSgdReducer<T>>(context);
}

#define NANOTRON_INSTANTIATE(T) template std::unique_ptr<GradientReducer<T>> make_power_sgd(const ReducerContext<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::parallel
