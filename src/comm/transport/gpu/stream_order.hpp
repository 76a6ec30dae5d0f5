#pragma once

// Orders operations on a stream of their own: after what the caller has queued on its stream, and before
// what it queues after wait().

#include <cstdint>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/base/gpu_calls.hpp"
#include "nanotron/comm/group.hpp"

namespace nanotron::comm {

/// Owns two events per operation in flight; later operations reuse them.
class StreamOrder {
 public:
  StreamOrder() = default;
  ~StreamOrder() {
    for (const Pending& pending : pending_) {
      static_cast<void>(gpuEventDestroy(pending.ready));
      static_cast<void>(gpuEventDestroy(pending.done));
    }
  }
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  /// What is queued on `caller` now, for after().
  std::uint64_t mark(const Stream& caller) {
    const std::size_t ticket = take();
    Pending& pending = pending_[ticket];
    pending.caller = caller.get();
    NANOTRON_CHECK_GPU(gpuEventRecord(pending.ready, pending.caller));
    return ticket;
  }

  /// call() queues an operation on `own`, to run after what is queued on `caller`, or was when it was marked. Returns
  /// its ticket.
  template <class Call>
  std::uint64_t after(const Stream& caller, gpuStream_t own, const Call& call) {
    return after(mark(caller), own, call);
  }
  template <class Call>
  std::uint64_t after(std::uint64_t marked, gpuStream_t own, const Call& call) {
    const Pending& pending = pending_[marked];
    NANOTRON_CHECK_GPU(gpuStreamWaitEvent(own, pending.ready, 0));
    call();
    NANOTRON_CHECK_GPU(gpuEventRecord(pending.done, own));
    return marked;
  }

  bool test(std::uint64_t ticket) {
    if (!is_passed(pending_[ticket].done)) return false;
    free_.push_back(ticket);
    return true;
  }

  void wait(std::uint64_t ticket) {
    NANOTRON_CHECK_GPU(gpuStreamWaitEvent(pending_[ticket].caller, pending_[ticket].done, 0));
    free_.push_back(ticket);
  }

 private:
  struct Pending {
    gpuEvent_t ready = nullptr;  // recorded on the caller's stream: the buffers are ready
    gpuEvent_t done = nullptr;   // recorded on the operation's stream
    gpuStream_t caller = nullptr;
  };

  std::size_t take() {
    if (!free_.empty()) {
      const std::size_t ticket = free_.back();
      free_.pop_back();
      return ticket;
    }
    Pending& made = pending_.emplace_back();
    NANOTRON_CHECK_GPU(gpuEventCreateWithFlags(&made.ready, gpuEventDisableTiming));
    NANOTRON_CHECK_GPU(gpuEventCreateWithFlags(&made.done, gpuEventDisableTiming));
    free_.reserve(pending_.size());
    return pending_.size() - 1;
  }

  std::vector<Pending> pending_;
  std::vector<std::size_t> free_;
};

}  // namespace nanotron::comm
