#pragma once

// Point-to-point messages between neighbours in a group, which is a ring. The interface that start_send and
// start_receive of collectives.hpp call: one class per transport.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "nanotron/comm/communicator.hpp"
#include "nanotron/comm/group.hpp"

namespace nanotron::comm {

/// Rank r's neighbours are (r + 1) mod size and (r - 1) mod size.
enum class Neighbour { next, previous };

/// A point in the work queued on a stream: its end now, or where mark() of collectives.hpp was called. Use a mark once.
class StreamPoint {
 public:
  StreamPoint(const Stream& stream = {}, const std::optional<std::uint64_t>& mark = {})
      : stream_(stream), mark_(mark) {}
  const Stream& stream() const { return stream_; }
  const std::optional<std::uint64_t>& mark() const { return mark_; }

 private:
  Stream stream_;
  std::optional<std::uint64_t> mark_;
};

/// Nonblocking operations. Give each ticket to wait once, or to test until it returns true.
class Operations {
 public:
  virtual ~Operations() = default;
  virtual bool test(std::uint64_t ticket) = 0;
  virtual void wait(std::uint64_t ticket) = 0;
  /// As Group::register_memory.
  virtual void register_memory(const Registration&) {}
};

inline constexpr int message_lanes = 2;

/// Messages of one lane (0 <= lane < message_lanes) from one rank to a neighbour arrive in the order of their sends.
/// They are independent of all others: a send without a receive yet blocks nothing else. Made by all ranks of the ring
/// together, each of which then waits for its neighbours.
class Messages : public Operations {
 public:
  virtual std::uint64_t start_send(const void* data, std::size_t bytes, Neighbour to, int lane,
                                   const Stream& stream) = 0;
  virtual std::uint64_t start_receive(void* data, std::size_t bytes, Neighbour from, int lane,
                                      const Stream& stream) = 0;
};

/// Of a planned group.
std::unique_ptr<Messages> make_planned_messages(const PlannedLog& log);

/// Host memory. The communicator must outlive the messages.
std::unique_ptr<Messages> make_mpi_messages(const Communicator& communicator);
#ifdef NANOTRON_WITH_GPU
/// blocks: as Group::limit_message_blocks.
std::unique_ptr<Messages> make_nccl_messages(const Communicator& communicator, int blocks = 0);
/// GPU memory, copied through pinned host buffers that `host` moves.
std::unique_ptr<Messages> make_staged_messages(std::unique_ptr<Messages> host);
#endif

}  // namespace nanotron::comm
