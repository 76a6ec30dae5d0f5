#include "nanotron/parallel/reducers/data_parallel.hpp"

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/elementwise/cast.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/reduction/scaled_half.hpp"

namespace nanotron::parallel {
namespace {

// Whole blocks, so that what scales them does not depend on the size of a bucket.
template <class M>
index_t elements_of(double megabytes) {
  NANOTRON_REQUIRE(megabytes > 0.0, "a bucket of {} MiB: settle_bucket was not called", megabytes);
  const auto wanted = static_cast<index_t>(megabytes * 1024 * 1024 / sizeof(M));
  return std::max<index_t>(1, wanted / kernels::half_block) * kernels::half_block;
}

}  // namespace

template <class T>
BucketedSum<T>::BucketedSum(model::Transformer<T>& model, const model::Section& section, comm::Group& replicas,
                            Device& device, const SumRule& rule)
    : model_(&model),
      replicas_(&replicas),
      device_(&device),
      section_(section),
      gradient_(model.parameters().gradient.data() + section.flat.begin, section.flat.size()),
      count_(model.table(), rule.micro_batches),
      is_final_(static_cast<std::size_t>(section.units.size()), 0),
      not_final_(is_final_.size()),
      overlap_(rule.overlap),
      bucket_(elements_of<M>(rule.megabytes)),
      running_((gradient_.size() + static_cast<std::size_t>(bucket_) - 1) / static_cast<std::size_t>(bucket_)) {}

template <class T>
void BucketedSum<T>::begin_step() {
  kernels::fill<M>(*device_, gradient_, 0.0);
}

template <class T>
Range BucketedSum<T>::bucket(std::size_t number) const {
  const index_t end = static_cast<index_t>(gradient_.size()) - static_cast<index_t>(number) * bucket_;
  return {std::max<index_t>(0, end - bucket_), end};
}

template <class T>
void BucketedSum<T>::end(index_t unit) {
  if (!count_.add(unit)) return;
  model_->sum_partial_gradients(model_->table().units[static_cast<std::size_t>(unit)].range);
  is_final_[static_cast<std::size_t>(unit - section_.units.begin)] = 1;
  while (not_final_ > 0 && is_final_[not_final_ - 1]) --not_final_;
  send_final();
}

template <class T>
void BucketedSum<T>::prepare_next() {
  prepare(bucket(prepared_));
  if (++prepared_ > started_ + static_cast<std::size_t>(lag())) start_next();
}

template <class T>
void BucketedSum<T>::send_final() {
  if (!overlap_ || replicas_->size() == 1 || not_final_ == is_final_.size()) return;
  const auto unit = static_cast<std::size_t>(section_.units.begin) + not_final_;
  const index_t begin = model_->table().units[unit].range.begin - section_.flat.begin;
  const Region region(device_->timers(), "gradient sum, overlapped");
  while (prepared_ < running_.size() && bucket(prepared_).begin >= begin) prepare_next();
  for (; done_ < started_ && running_[done_].test(); ++done_) land(bucket(done_));
}

template <class T>
void BucketedSum<T>::finish() {
  model_->sum_partial_gradients(section_.vectors);
  is_final_.assign(is_final_.size(), 0);
  not_final_ = is_final_.size();
  if (replicas_->size() == 1) return;
  const Region region(device_->timers(), "gradient sum, exposed");
  const double begin = wall_seconds();
  while (prepared_ < running_.size()) prepare_next();
  while (started_ < running_.size()) start_next();
  for (; done_ < started_; ++done_) {
    running_[done_].wait();
    land(bucket(done_));
  }
  prepared_ = started_ = done_ = 0;
  this->exposed_seconds_ += wall_seconds() - begin;
}

template <class T>
comm::Request DataParallel<T>::start(const Range& bucket) {
  return comm::start_all_reduce(this->replicas(), this->gradient(bucket).data(),
                                static_cast<std::size_t>(bucket.size()), comm::ReduceOp::sum, this->device().stream());
}

template <class T>
comm::Request RoundedSum<T>::start(const Range& bucket) {
  kernels::cast<master_t<T>, bf16>(this->device(), this->gradient(bucket), part(bucket));
  return comm::start_all_reduce(this->replicas(), part(bucket).data(), static_cast<std::size_t>(bucket.size()),
                                comm::ReduceOp::sum, this->device().stream());
}

template <class T>
void RoundedSum<T>::land(const Range& bucket) {
  kernels::cast<bf16, master_t<T>>(this->device(), part(bucket), this->gradient(bucket));
}

#define NANOTRON_INSTANTIATE(T)    \
  template class BucketedSum<T>;   \
  template class DataParallel<T>;  \
  template class RoundedSum<T>;
NANOTRON_INSTANTIATE(double)
NANOTRON_INSTANTIATE(float)
NANOTRON_INSTANTIATE(bf16)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::parallel
