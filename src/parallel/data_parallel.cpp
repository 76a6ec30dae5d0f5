#include "nanotron/parallel/data_parallel.hpp"

#include <algorithm>

#include "nanotron/kernels/elementwise.hpp"

namespace nanotron::parallel {

template <class T>
DataParallel<T>::DataParallel(model::Transformer<T>& model, comm::Group& replicas, Device& device, const SumRule& rule)
    : model_(&model),
      replicas_(&replicas),
      device_(&device),
      gradient_(model.parameters().gradient),
      count_(model.table(), rule.micro_batches),
      is_final_(model.table().units.size(), 0),
      not_final_(is_final_.size()),
      overlap_(rule.overlap),
      bucket_(std::max<index_t>(1, static_cast<index_t>(rule.megabytes * 1024 * 1024 / sizeof(M)))),
      unsent_(static_cast<index_t>(gradient_.size())),
      running_(static_cast<std::size_t>((unsent_ + bucket_ - 1) / bucket_)) {}

template <class T>
void DataParallel<T>::begin_step() {
  kernels::fill<M>(*device_, gradient_, 0.0);
}

template <class T>
void DataParallel<T>::end(index_t unit) {
  if (!count_.add(unit)) return;
  model_->sum_partial_gradients(model_->table().units[static_cast<std::size_t>(unit)].range);
  is_final_[static_cast<std::size_t>(unit)] = 1;
  while (not_final_ > 0 && is_final_[not_final_ - 1]) --not_final_;
  send_final();
}

template <class T>
void DataParallel<T>::start_next() {
  const index_t begin = std::max<index_t>(0, unsent_ - bucket_);
  running_[started_++] = comm::start_all_reduce(*replicas_, gradient_.data() + begin,
                                                static_cast<std::size_t>(unsent_ - begin),
                                                comm::ReduceOp::sum, device_->stream());
  unsent_ = begin;
}

template <class T>
void DataParallel<T>::send_final() {
  if (!overlap_ || replicas_->size() == 1 || not_final_ == is_final_.size()) return;
  const index_t begin = model_->table().units[not_final_].range.begin;
  const Region region(device_->timers(), "gradient sum, overlapped");
  while (unsent_ > 0 && std::max<index_t>(0, unsent_ - bucket_) >= begin) start_next();
  while (done_ < started_ && running_[done_].test()) ++done_;
}

template <class T>
void DataParallel<T>::finish() {
  model_->sum_partial_gradients(model_->table().vectors);
  is_final_.assign(is_final_.size(), 0);
  not_final_ = is_final_.size();
  if (replicas_->size() == 1) return;
  const Region region(device_->timers(), "gradient sum, exposed");
  const double begin = wall_seconds();
  while (unsent_ > 0) start_next();
  while (done_ < started_) running_[done_++].wait();
  started_ = done_ = 0;
  unsent_ = static_cast<index_t>(gradient_.size());
  this->exposed_seconds_ += wall_seconds() - begin;
}

template class DataParallel<double>;
template class DataParallel<float>;
template class DataParallel<bf16>;

}  // namespace nanotron::parallel
