#include "nn/moe/row_messages.hpp"

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/moe/expert_rows.hpp"

namespace nanotron::nn {

template <class T>
RowMessages<T>::RowMessages(const MessageSize& size, comm::Group& group, Arena& arena)
    : size_(size),
      group_(&group),
      send_(arena.take<T>(MemoryKind::workspace, size.sent, size.hidden)),
      received_(arena.take<T>(MemoryKind::workspace, has_received(size) ? size.received : 0, size.hidden)),
      sent_words_(arena.take<std::uint64_t>(MemoryKind::workspace, size.sent * max_words(size))),
      received_words_(arena.take<std::uint64_t>(MemoryKind::workspace, size.received * max_words(size))),
      sent_values_(arena.take<M>(MemoryKind::workspace, size.sent * size.values)),
      received_values_(arena.take<M>(MemoryKind::workspace, size.received * size.values)),
      sent_counts_(static_cast<std::size_t>(group.size())),
      received_counts_(static_cast<std::size_t>(group.size())) {}

// Not where rows travel in a narrower form both ways.
template <class T>
bool RowMessages<T>::has_received(const MessageSize& size) {
  return size.keeps_received || !kernels::is_packed<T>(size.row_type) ||
         !kernels::is_packed<T>(kernels::returned_as(size.row_type));
}

template <class T>
Matrix<T> RowMessages<T>::first_rows(const Matrix<T>& all, index_t n) const {
  NANOTRON_REQUIRE(n <= static_cast<index_t>(all.extent(0)), "{} rows of messages in {}", n, all.extent(0));
  return Matrix<T>(all.data(), n, size_.hidden);
}

template <class T>
index_t RowMessages<T>::max_words(const MessageSize& size) {
  index_t words = 0;
  for (const deck::ExpertRowType type : {size.row_type, kernels::returned_as(size.row_type)}) {
    if (kernels::is_packed<T>(type)) words = std::max(words, kernels::wire_words(type, size.hidden));
  }
  return words;
}

template <class T>
index_t RowMessages<T>::row_bytes(deck::ExpertRowType type) const {
  return kernels::is_packed<T>(type) ? 8 * kernels::wire_words(type, size_.hidden)
                                     : size_.hidden * static_cast<index_t>(sizeof(T));
}

template <class T>
Matrix<std::uint64_t> RowMessages<T>::words(const Vector<std::uint64_t>& all, index_t n,
                                            deck::ExpertRowType type) const {
  return Matrix<std::uint64_t>(all.data(), n, kernels::wire_words(type, size_.hidden));
}

template <class T>
void RowMessages<T>::count(const RowCounts& counts, index_t columns) {
  const auto elements = [&](std::span<const std::int64_t> rows, std::vector<std::size_t>& of_rank) {
    for (std::size_t r = 0; r < of_rank.size(); ++r) of_rank[r] = static_cast<std::size_t>(rows[r] * columns);
  };
  elements(counts.sent, sent_counts_);
  elements(counts.received, received_counts_);
}

template <class T>
void RowMessages<T>::pack(Device& device, index_t n) {
  if (!kernels::is_packed<T>(size_.row_type)) return;
  kernels::pack_rows<T>(device, size_.row_type, to_send(n), words(sent_words_, n, size_.row_type));
}

template <class T>
void RowMessages<T>::start_rows(const RowCounts& counts, const comm::StreamPoint& after) {
  if (kernels::is_packed<T>(size_.row_type)) {
    count(counts, kernels::wire_words(size_.row_type, size_.hidden));
    in_flight_[of_rows] = comm::start_all_to_all<std::uint64_t>(*group_, sent_words_.data(), sent_counts_,
                                                                received_words_.data(), received_counts_, after);
    return;
  }
  count(counts, size_.hidden);
  in_flight_[of_rows] =
      comm::start_all_to_all<T>(*group_, send_.data(), sent_counts_, received_.data(), received_counts_, after);
}

template <class T>
void RowMessages<T>::start_values(const RowCounts& counts, const comm::StreamPoint& after) {
  count(counts, size_.values);
  in_flight_[of_values] = comm::start_all_to_all<M>(*group_, sent_values_.data(), sent_counts_, received_values_.data(),
                                                    received_counts_, after);
}

template <class T>
void RowMessages<T>::finish_rows(Device& device, Vector<const std::int64_t> places, Matrix<T> rows) {
  in_flight_[of_rows].wait();
  const auto n = static_cast<index_t>(rows.extent(0));
  if (kernels::is_packed<T>(size_.row_type)) {
    kernels::unpack_rows<T>(device, size_.row_type, words(received_words_, n, size_.row_type), rows, places);
  } else if (places.extent(0) > 0) {
    kernels::place_rows<T>(device, received(n), places, rows);
  }
}

template <class T>
void RowMessages<T>::finish_values(Device& device, Vector<const std::int64_t> places, Vector<M> values) {
  in_flight_[of_values].wait();
  if (places.extent(0) > 0)
    kernels::place_values<M>(device, received_values(static_cast<index_t>(places.extent(0))), places, values);
}

template <class T>
void RowMessages<T>::return_rows(Device& device, const RowCounts& counts, Vector<const std::int64_t> places,
                                 Matrix<T> rows) {
  const auto n = static_cast<index_t>(rows.extent(0));
  const deck::ExpertRowType type = kernels::returned_as(size_.row_type);
  if (kernels::is_packed<T>(type)) {
    kernels::pack_rows<T>(device, type, rows, words(received_words_, n, type), places);
    count(counts, kernels::wire_words(type, size_.hidden));
    in_flight_[of_rows] = comm::start_all_to_all<std::uint64_t>(*group_, received_words_.data(), received_counts_,
                                                                sent_words_.data(), sent_counts_, device.stream());
    return;
  }
  if (places.extent(0) > 0) kernels::gather_rows<T>(device, 1, rows, places, received(n));
  count(counts, size_.hidden);
  in_flight_[of_rows] = comm::start_all_to_all<T>(*group_, received_.data(), received_counts_, send_.data(),
                                                  sent_counts_, device.stream());
}

template <class T>
void RowMessages<T>::return_values(Device& device, const RowCounts& counts, Vector<const std::int64_t> places,
                                   Vector<M> values) {
  if (places.extent(0) > 0)
    kernels::gather_values<M>(device, values, places, received_values(static_cast<index_t>(places.extent(0))));
  count(counts, size_.returned_values);
  in_flight_[of_values] = comm::start_all_to_all<M>(*group_, received_values_.data(), received_counts_,
                                                    sent_values_.data(), sent_counts_, device.stream());
}

template <class T>
Matrix<const T> RowMessages<T>::returned_rows(Device& device, index_t n) {
  in_flight_[of_rows].wait();
  const deck::ExpertRowType type = kernels::returned_as(size_.row_type);
  if (kernels::is_packed<T>(type)) kernels::unpack_rows<T>(device, type, words(sent_words_, n, type), to_send(n));
  return to_send(n);
}

template <class T>
Vector<const typename RowMessages<T>::M> RowMessages<T>::returned_values(index_t n) {
  in_flight_[of_values].wait();
  return Vector<const M>(sent_values_.data(), n * size_.returned_values);
}

template <class T>
void RowMessages<T>::progress() {
  for (comm::Request& message : in_flight_) message.test();
}

NANOTRON_INSTANTIATE_CLASS(RowMessages)

}  // namespace nanotron::nn
