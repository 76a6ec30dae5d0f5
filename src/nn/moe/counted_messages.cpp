#include "nn/moe/counted_messages.hpp"

#include <algorithm>

namespace nanotron::nn {

template <class T>
CountedMessages<T>::CountedMessages(const MessageSize& size, comm::Group& group, index_t counts, Arena& arena)
    : RowMessages<T>(size, group, arena), counts_(static_cast<std::size_t>(counts)) {
  if (!arena.is_planning()) copy_.emplace(counts_.size());
}

template <class T>
bool CountedMessages<T>::start_counts(const Device& device, Vector<const std::int64_t> counts) {
  if (device.is_planning()) return true;
  copy_->start(device, counts);
  if (copy_->is_running()) return false;
  std::ranges::copy(copy_->values(), counts_.begin());
  return true;
}

template <class T>
bool CountedMessages<T>::finish_counts() {
  if (!is_counting()) return false;
  copy_->wait();
  std::ranges::copy(copy_->values(), counts_.begin());
  return true;
}

template <class T>
bool CountedMessages<T>::postpone(Device& device) {
  if (!is_counting()) return false;
  values_ready_ = this->mark(device);
  rows_ready_ = this->mark(device);
  return true;
}

template <class T>
void CountedMessages<T>::start(const RowCounts& counts, bool has_values, Device& device) {
  if (has_values) this->start_values(counts, device.stream());
  this->start_rows(counts, device.stream());
}

template <class T>
void CountedMessages<T>::start_waiting(const RowCounts& counts) {
  if (!values_ready_) return;
  this->start_values(counts, *values_ready_);
  this->start_rows(counts, *rows_ready_);
  values_ready_.reset();
}

NANOTRON_INSTANTIATE_CLASS(CountedMessages)

}  // namespace nanotron::nn
