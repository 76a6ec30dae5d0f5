#pragma once

// How states in host memory (optimizer%state_memory = 'host') are updated in memory of a GPU. A bucket is up to 32 MiB
// of the states of contiguous elements; each of n buffers has one after another:
//
//   copy engine   buffer <- bucket i            after the copy of bucket i - n to the host
//   kernels       the update in the buffer
//   copy engine   host <- bucket i              beside the next buckets of the other direction
//
// So an update of s bytes of states lasts s / B, B the rate of the link in each direction, and a bucket more. Private
// to optim.

#include <algorithm>
#include <optional>
#include <vector>

#include "nanotron/model/parameters/parameter_table.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/host_transfers.hpp"

namespace nanotron::optim {

/// Elements of the states, and the source (model::ParameterTable) whose weights these are of; no_unit: of several.
struct SourceElements {
  index_t source = model::no_unit;
  Range elements{};
};

/// States of one type in host memory.
struct StatesOnHost {
  std::vector<std::byte*> states;  // null in a plan
  std::size_t element = 0;         // bytes of an element
  std::size_t bucket = 0;          // bytes; 0: 32 MiB, less where all states have less than 1 GiB
};

class HostBuckets {
 public:
  /// order: all elements, as a pass goes through them. No bucket has elements of two sources.
  HostBuckets(const std::vector<SourceElements>& order, StatesOnHost host, Arena& arena);

  /// Begins a pass: the first buckets come in.
  void begin(Device& device);
  /// The elements of the bucket with this one, which is of the current bucket or the first of the next one. Kernels
  /// that are queued from now on find the bucket at state().
  Range load(Device& device, index_t element);
  std::byte* state(std::size_t i) const { return in_buffer(current_ - 1, i); }
  /// The current bucket goes back, if it has not: the pass has no more of its elements.
  void store(Device& device);
  /// Kernels that are queued from now on, and copies, find the states in host memory.
  void finish(Device& device);

 private:
  enum class Direction { in, out };
  struct Buffer {
    std::vector<HostTransfers::Ticket> copies{};  // of each state, that nothing has waited for
  };

  std::byte* in_buffer(std::size_t bucket, std::size_t state) const {
    const std::size_t at = bucket % buffers_.size() * host_.states.size() + state;
    return memory_.data() == nullptr ? nullptr : memory_.data() + at * state_bytes_;
  }
  Buffer& buffer_of(std::size_t bucket) { return buffers_[bucket % buffers_.size()]; }
  void copy(Device& device, std::size_t bucket, Direction direction);
  void settle(Device& device, Buffer& buffer);

  StatesOnHost host_;
  std::vector<Range> buckets_;
  std::vector<Buffer> buffers_;
  std::size_t state_bytes_ = 0;  // of a state in a buffer
  Vector<std::byte> memory_{};
  std::size_t current_ = 0;  // buckets of the pass that have been loaded
  bool is_stored_ = true;    // the last of these
  std::optional<HostTransfers> transfers_{};
};

}  // namespace nanotron::optim
