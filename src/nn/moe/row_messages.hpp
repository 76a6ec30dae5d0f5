#pragma once

// Rows of hidden states that travel to other ranks of a group and back, each with some values beside it. Private to the
// nn layer.

#include <span>
#include <vector>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/kernels/moe/wire_rows.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::nn {

struct MessageSize {
  index_t sent = 0, received = 0;  // max rows
  index_t hidden = 0;
  index_t values = 1, returned_values = 1;  // beside a row sent, and one that returns
  deck::ExpertRowType row_type = deck::ExpertRowType::compute;
  bool keeps_received = false;  // received() has memory for any row_type
};

/// Rows to each rank of the group and from each.
struct RowCounts {
  std::span<const std::int64_t> sent, received;
};

/// Received rows are in the order of their ranks. places: where each belongs among the caller's rows; none: the same
/// order. Rows travel in the form that row_type says, back in the form of kernels::returned_as(). All but the buffers
/// and marks are collective over the group. Rows and values of one way at a time.
template <class T>
class RowMessages {
 public:
  using M = master_t<T>;
  RowMessages(const MessageSize& size, comm::Group& group, Arena& arena);

  index_t sent_bytes() const { return row_bytes(size_.row_type); }  // of a row
  index_t returned_bytes() const { return row_bytes(kernels::returned_as(size_.row_type)); }

  /// Where the caller writes n rows to send, and what comes back of them.
  Matrix<T> to_send(index_t n) const { return first_rows(send_, n); }
  Vector<M> values_to_send(index_t n) const { return Vector<M>(sent_values_.data(), n * size_.values); }
  /// Memory of n received rows: given to finish_rows or return_rows, they stay where they are.
  Matrix<T> received(index_t n) const { return first_rows(received_, n); }
  Vector<M> received_values(index_t n) const { return Vector<M>(received_values_.data(), n * size_.values); }

  /// Before start_rows, after n rows to send are written.
  void pack(Device& device, index_t n);
  void start_rows(const RowCounts& counts, const comm::StreamPoint& after);
  void start_values(const RowCounts& counts, const comm::StreamPoint& after);
  comm::StreamPoint mark(Device& device) { return comm::mark(*group_, device.stream()); }
  void finish_rows(Device& device, Vector<const std::int64_t> places, Matrix<T> rows);
  void finish_values(Device& device, Vector<const std::int64_t> places, Vector<M> values);

  void return_rows(Device& device, const RowCounts& counts, Vector<const std::int64_t> places, Matrix<T> rows);
  void return_values(Device& device, const RowCounts& counts, Vector<const std::int64_t> places, Vector<M> values);
  Matrix<const T> returned_rows(Device& device, index_t n);
  Vector<const M> returned_values(index_t n);

  /// On the host: messages in flight make progress.
  void progress();

 private:
  enum Message { of_values, of_rows };

  static bool has_received(const MessageSize& size);
  Matrix<T> first_rows(const Matrix<T>& all, index_t n) const;
  static index_t max_words(const MessageSize& size);
  index_t row_bytes(deck::ExpertRowType type) const;
  Matrix<std::uint64_t> words(const Vector<std::uint64_t>& all, index_t n, deck::ExpertRowType type) const;
  void count(const RowCounts& counts, index_t columns);

  MessageSize size_;
  comm::Group* group_;
  Matrix<T> send_, received_;
  Vector<std::uint64_t> sent_words_, received_words_;  // of rows that travel in a narrower form
  Vector<M> sent_values_, received_values_;
  std::vector<std::size_t> sent_counts_, received_counts_;  // elements, per rank
  std::vector<comm::Request> in_flight_ = std::vector<comm::Request>(2);
};

}  // namespace nanotron::nn
