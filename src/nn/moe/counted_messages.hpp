#pragma once

// Rows to other ranks whose numbers the device counts. Private to the nn layer.

#include <optional>
#include <span>
#include <vector>

#include "nanotron/tensor/host_copy.hpp"
#include "nn/moe/row_messages.hpp"

namespace nanotron::nn {

/// Messages that may be given away before the host knows how many rows they have: they start when it does, after the
/// work that was queued before them.
template <class T>
class CountedMessages final : public RowMessages<T> {
 public:
  /// counts: how many numbers the device writes.
  CountedMessages(const MessageSize& size, comm::Group& group, index_t counts, Arena& arena);

  /// On the host, after start_counts or finish_counts; the caller writes them in a plan.
  std::span<std::int64_t> counts() { return counts_; }
  std::span<const std::int64_t> counts() const { return counts_; }

  /// Copies the counts to the host. True: they are there.
  bool start_counts(const Device& device, Vector<const std::int64_t> counts);
  /// Waits for them. False: they were there.
  bool finish_counts();

  /// After pack: rows, and values beside them, start now; or in start_waiting, if postpone says so.
  bool postpone(Device& device);
  void start(const RowCounts& counts, bool has_values, Device& device);
  /// After finish_counts: starts what was postponed.
  void start_waiting(const RowCounts& counts);

 private:
  bool is_counting() const { return copy_.has_value() && copy_->is_running(); }

  std::vector<std::int64_t> counts_;
  std::optional<HostCopy> copy_;                                // none in a plan
  std::optional<comm::StreamPoint> values_ready_, rows_ready_;  // of messages that wait for the counts
};

}  // namespace nanotron::nn
