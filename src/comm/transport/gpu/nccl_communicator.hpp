#pragma once

// An NCCL communicator with a stream of the highest priority. Both end with it: after what is queued, or at once
// where an error is on its way. NCCL's environment variables come before what is set here (NCCL_MAX_CTAS).

#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/transport/gpu/nccl_versions.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/comm/group.hpp"
#include "nanotron/comm/transport/nccl_api.hpp"

namespace nanotron::comm {

/// All communicators of this process, for a thread that watches them. One that was aborted is not destroyed again.
class NcclCommunicators {
 public:
  void add(ncclComm_t comm) {
    const std::lock_guard lock(mutex_);
    comms_.push_back(comm);
  }
  /// False: it was aborted.
  bool remove(ncclComm_t comm) {
    const std::lock_guard lock(mutex_);
    return std::erase(comms_, comm) > 0;
  }
  /// The first asynchronous error; ncclSuccess for none.
  ncclResult_t first_error() {
    const std::lock_guard lock(mutex_);
    for (const ncclComm_t comm : comms_) {
      ncclResult_t error = ncclSuccess;
      if (ncclCommGetAsyncError(comm, &error) == ncclSuccess && error != ncclSuccess && !is_in_progress(error)) {
        return error;
      }
    }
    return ncclSuccess;
  }
  std::uint64_t bytes() {
    const std::lock_guard lock(mutex_);
    std::uint64_t sum = 0;
    for (const ncclComm_t comm : comms_) sum += bytes_of(comm);
    return sum;
  }
  /// As a group: ncclCommAbort tells its kernels to end, then waits for the streams (src/init.cc of NCCL 2.30,
  /// commReclaim), which may wait for kernels of the next communicator. In a group all are told before any waits.
  void abort_all() {
    const std::lock_guard lock(mutex_);
    ncclGroupStart();
    for (const ncclComm_t comm : comms_) ncclCommAbort(comm);
    ncclGroupEnd();
    comms_.clear();
  }
  static NcclCommunicators& of_process() {
    static NcclCommunicators all;
    return all;
  }

 private:
  std::mutex mutex_;
  std::vector<ncclComm_t> comms_;
};

class NcclCommunicator {
 public:
  /// Collective over the `size` ranks that share the id.
  NcclCommunicator(const ncclUniqueId& id, int size, int rank, const NcclResources& resources)
      : comm_(make_communicator(id, size, rank, resources)) {
    NcclCommunicators::of_process().add(comm_);
    int least = 0, greatest = 0;
    NANOTRON_CHECK_GPU(gpuDeviceGetStreamPriorityRange(&least, &greatest));
    NANOTRON_CHECK_GPU(gpuStreamCreateWithPriority(&stream_, gpuStreamNonBlocking, greatest));
  }
  ~NcclCommunicator() {
    const bool is_alive = NcclCommunicators::of_process().remove(comm_);
    if (is_alive && std::uncaught_exceptions() > 0) {
      ncclCommAbort(comm_);
    } else if (is_alive) {
      static_cast<void>(gpuStreamSynchronize(stream_));
      forget_memory();
      ncclCommDestroy(comm_);
    }
    static_cast<void>(gpuStreamDestroy(stream_));
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  ncclComm_t comm() const { return comm_; }
  gpuStream_t stream() const { return stream_; }

  /// As Group::register_memory.
  void register_memory(const Registration& registration) {
    forget_memory();
    const std::span<std::byte> memory = registration.memory;
    if (memory.empty()) return;
    if (registration.how == deck::MemoryRegistration::symmetric) {
      window_ = register_window(comm_, memory);
    } else {
      registration_ = comm::register_memory(comm_, memory);
    }
  }

 private:
  void forget_memory() {
    if (registration_ != nullptr) deregister_memory(comm_, std::exchange(registration_, nullptr));
    if (window_ != nullptr) deregister_window(comm_, std::exchange(window_, nullptr));
  }

  ncclComm_t comm_ = nullptr;
  gpuStream_t stream_ = nullptr;
  void* registration_ = nullptr;  // null too where NCCL registers nothing, as the next
  NcclWindow window_ = nullptr;
};

}  // namespace nanotron::comm
