#include "bucketed_all_reduce.hpp"

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/reduction/scaled_half.hpp"
#include "parallel/reducers/strategies.hpp"

namespace nanotron::parallel {
namespace {

// A multiple of the fp16 block, so that block scales do not depend on the bucket size. 0 MiB (not chosen): one bucket.
template <class M>
index_t elements_of(double megabytes, index_t all) {
  const auto wanted = megabytes > 0.0 ? static_cast<index_t>(megabytes * 1024 * 1024 / sizeof(M)) : all;
  return std::max<index_t>(1, wanted / kernels::half_block) * kernels::half_block;
}

}  // namespace

template <class T>
BucketedAllReduce<T>::BucketedAllReduce(const ReducerContext<T>& c)
    : GradientReducer<T>(c, {.micro_batches = ReduceWhen::all_of_step}),
      megabytes_(c.config.parallel.bucket_mb),
      bucket_(elements_of<M>(megabytes_, c.section.flat.size())),
      is_final_(static_cast<std::size_t>(c.section.units.size()), 0),
      not_final_(is_final_.size()),
      running_(static_cast<std::size_t>((c.section.flat.size() + bucket_ - 1) / bucket_)) {}

template <class T>
Vector<master_t<T>> BucketedAllReduce<T>::part(const Range& bucket) const {
  const index_t first = this->section().flat.begin;
  return this->gradient({first + bucket.begin, first + bucket.end});
}

template <class T>
void BucketedAllReduce<T>::start_step() {
  NANOTRON_REQUIRE(megabytes_ > 0.0, "a bucket of {} MiB: choose_bucket was not called", megabytes_);
  this->clear(this->model().parameters().layouts.gradient);
}

template <class T>
Range BucketedAllReduce<T>::bucket(std::size_t number) const {
  const index_t end = this->section().flat.size() - static_cast<index_t>(number) * bucket_;
  return {std::max<index_t>(0, end - bucket_), end};
}

template <class T>
void BucketedAllReduce<T>::completed(index_t unit) {
  is_final_[static_cast<std::size_t>(unit - this->section().units.begin)] = 1;
  while (not_final_ > 0 && is_final_[not_final_ - 1]) --not_final_;
  send_final();
}

template <class T>
void BucketedAllReduce<T>::start_next() {
  running_[started_] = start(bucket(started_));
  ++started_;
}

template <class T>
void BucketedAllReduce<T>::prepare_next() {
  prepare(bucket(prepared_));
  if (++prepared_ > started_ + static_cast<std::size_t>(lag())) start_next();
}

template <class T>
void BucketedAllReduce<T>::send_final() {
  if (!this->overlap() || this->data().size() == 1 || not_final_ == is_final_.size()) return;
  const model::Unit& first = this->unit(this->section().units.begin + static_cast<index_t>(not_final_));
  const index_t begin = first.range.begin - this->section().flat.begin;
  const Region region(this->device().timers(), "gradient reduction, overlapped");
  while (prepared_ < running_.size() && bucket(prepared_).begin >= begin) prepare_next();
  for (; done_ < started_ && running_[done_].test(); ++done_) received(bucket(done_));
}

template <class T>
void BucketedAllReduce<T>::finish_step() {
  is_final_.assign(is_final_.size(), 0);
  not_final_ = is_final_.size();
  if (this->data().size() == 1) return;
  const typename GradientReducer<T>::Exposed exposed(*this);
  while (prepared_ < running_.size()) prepare_next();
  while (started_ < running_.size()) start_next();
  for (; done_ < started_; ++done_) {
    running_[done_].wait();
    received(bucket(done_));
  }
  prepared_ = started_ = done_ = 0;
}

namespace {

/// All-reduces buckets in the master type, in place.
template <class T>
class AllReduceReducer final : public BucketedAllReduce<T> {
 public:
  using M = master_t<T>;
  explicit AllReduceReducer(const ReducerContext<T>& context) : BucketedAllReduce<T>(context) {}

 private:
  comm::Request start(const Range& bucket) override;
  void received(const Range&) override {}
  comm::StepTraffic strategy_traffic() const override;
};

template <class T>
comm::Request AllReduceReducer<T>::start(const Range& bucket) {
  return comm::start_all_reduce(this->data(), this->part(bucket).data(), static_cast<std::size_t>(bucket.size()),
                                comm::ReduceOp::sum, this->device().stream());
}

template <class T>
comm::StepTraffic AllReduceReducer<T>::strategy_traffic() const {
  const index_t bytes = this->section().flat.size() * static_cast<index_t>(sizeof(M));
  return {.data_parallel = comm::all_reduce_bytes(bytes, this->data().size())};
}

}  // namespace

template <class T>
std::unique_ptr<GradientReducer<T>> make_all_reduce(const ReducerContext<T>& context) {
  return std::make_unique<AllReduceReducer<T>>(context);
}

#define NANOTRON_INSTANTIATE(T) template std::unique_ptr<GradientReducer<T>> make_all_reduce(const ReducerContext<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
NANOTRON_INSTANTIATE_CLASS(BucketedAllReduce)

}  // namespace nanotron::parallel
