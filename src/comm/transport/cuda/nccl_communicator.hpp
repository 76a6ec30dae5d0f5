#pragma once

// An NCCL communicator with a CUDA stream of the highest priority. Both end with it: after what is queued, or at once
// where an error is on its way. NCCL's environment variables come before what is set here (NCCL_MAX_CTAS).

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/transport/cuda/nccl_versions.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/comm/group.hpp"

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
      if (ncclCommGetAsyncError(comm, &error) == ncclSuccess && error != ncclSuccess && error != ncclInProgress) {
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

/// What the operations of a communicator take of a GPU. message_blocks: as Group::limit_message_blocks.
struct NcclResources {
  int message_blocks = 0;
  deck::CollectiveEngine engine = deck::CollectiveEngine::blocks;
};

class NcclCommunicator {
 public:
  /// Collective over the `size` ranks that share the id.
  NcclCommunicator(const ncclUniqueId& id, int size, int rank, const NcclResources& resources) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (resources.message_blocks > 0) config.maxCTAs = resources.message_blocks;
    if (resources.engine == deck::CollectiveEngine::copies) use_copy_engines(config);
    NANOTRON_CHECK_NCCL(ncclCommInitRankConfig(&comm_, size, id, rank, &config));
    NcclCommunicators::of_process().add(comm_);
    int least = 0, greatest = 0;
    NANOTRON_CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    NANOTRON_CHECK_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
  }
  ~NcclCommunicator() {
    const bool is_alive = NcclCommunicators::of_process().remove(comm_);
    if (is_alive && std::uncaught_exceptions() > 0) {
      ncclCommAbort(comm_);
    } else if (is_alive) {
      cudaStreamSynchronize(stream_);
      forget_memory();
      ncclCommDestroy(comm_);
    }
    cudaStreamDestroy(stream_);
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }

  /// As Group::register_memory.
  void register_memory(const Registration& registration) {
    forget_memory();
    const std::span<std::byte> memory = registration.memory;
    if (memory.empty()) return;
    if (registration.how == deck::MemoryRegistration::symmetric) {
      window_ = register_window(comm_, memory);
    } else {
      NANOTRON_CHECK_NCCL(ncclCommRegister(comm_, memory.data(), memory.size(), &registration_));
    }
  }

 private:
  void forget_memory() {
    if (registration_ != nullptr) ncclCommDeregister(comm_, std::exchange(registration_, nullptr));
    if (window_ != nullptr) deregister_window(comm_, std::exchange(window_, nullptr));
  }

  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  void* registration_ = nullptr;  // null too where NCCL registers nothing, as the next
  NcclWindow window_ = nullptr;
};

}  // namespace nanotron::comm
