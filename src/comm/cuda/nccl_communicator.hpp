#pragma once

// An NCCL communicator with a CUDA stream of the highest priority. Both end with it: after what is queued, or at once
// where an error is on its way.

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <exception>

#include "nanotron/base/error.hpp"

namespace nanotron::comm {

class NcclCommunicator {
 public:
  /// Collective over the `size` ranks that share the id.
  NcclCommunicator(const ncclUniqueId& id, int size, int rank) {
    NANOTRON_CHECK_NCCL(ncclCommInitRank(&comm_, size, id, rank));
    int least = 0, greatest = 0;
    NANOTRON_CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    NANOTRON_CHECK_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
  }
  ~NcclCommunicator() {
    if (std::uncaught_exceptions() > 0) {
      ncclCommAbort(comm_);
    } else {
      cudaStreamSynchronize(stream_);
      ncclCommDestroy(comm_);
    }
    cudaStreamDestroy(stream_);
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }

 private:
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace nanotron::comm
