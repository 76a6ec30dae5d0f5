#include "nanotron/parallel/data_parallel.hpp"

#include <algorithm>

namespace nanotron::parallel {

template <class M>
DataParallel<M>::DataParallel(comm::Group& replicas, Device& device, Vector<M> gradient,
                              const BucketRule& rule)
    : replicas_(&replicas),
      device_(&device),
      gradient_(gradient),
      overlap_(rule.overlap),
      bucket_(std::max<index_t>(1, static_cast<index_t>(rule.megabytes * 1024 * 1024 / sizeof(M)))),
      unsent_(static_cast<index_t>(gradient.size())),
      running_(static_cast<std::size_t>((unsent_ + bucket_ - 1) / bucket_)) {}

template <class M>
void DataParallel<M>::start_next() {
  const index_t begin = std::max<index_t>(0, unsent_ - bucket_);
  running_[started_++] = comm::start_all_reduce(*replicas_, gradient_.data() + begin,
                                                static_cast<std::size_t>(unsent_ - begin),
                                                comm::ReduceOp::sum, device_->stream());
  unsent_ = begin;
}

template <class M>
void DataParallel<M>::ready(index_t begin) {
  if (!overlap_ || replicas_->size() == 1) return;
  const Region region(device_->timers(), "gradient sum, overlapped");
  while (unsent_ > 0 && std::max<index_t>(0, unsent_ - bucket_) >= begin) start_next();
  while (done_ < started_ && running_[done_].test()) ++done_;
}

template <class M>
void DataParallel<M>::finish() {
  if (replicas_->size() == 1) return;
  const Region region(device_->timers(), "gradient sum, exposed");
  const double begin = wall_seconds();
  while (unsent_ > 0) start_next();
  while (done_ < started_) running_[done_++].wait();
  started_ = done_ = 0;
  unsent_ = static_cast<index_t>(gradient_.size());
  exposed_seconds_ += wall_seconds() - begin;
}

template class DataParallel<double>;
template class DataParallel<float>;

}  // namespace nanotron::parallel
