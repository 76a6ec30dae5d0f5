#pragma once

// An NCCL communicator with a CUDA stream of the highest priority. Both end with it: after what is queued, or at once
// where an error is on its way. NCCL's environment variables come before what is set here (NCCL_MAX_CTAS,
// NCCL_LOCAL_REGISTER=0).

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <exception>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/group.hpp"

namespace nanotron::comm {

class NcclCommunicator {
 public:
  /// Thread blocks of the GPU that an operation may take, which GEMMs beside it do not have; 0: as many as NCCL wants.
  enum class Blocks : int { any = 0, few = 8 };

  /// Collective over the `size` ranks that share the id.
  NcclCommunicator(const ncclUniqueId& id, int size, int rank, Blocks blocks = Blocks::any) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (blocks != Blocks::any) config.maxCTAs = static_cast<int>(blocks);
    NANOTRON_CHECK_NCCL(ncclCommInitRankConfig(&comm_, size, id, rank, &config));
    int least = 0, greatest = 0;
    NANOTRON_CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    NANOTRON_CHECK_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
  }
  ~NcclCommunicator() {
    if (std::uncaught_exceptions() > 0) {
      ncclCommAbort(comm_);
    } else {
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
  void register_memory(RegisteredMemory memory) {
    forget_memory();
    if (!memory.empty()) NANOTRON_CHECK_NCCL(ncclCommRegister(comm_, memory.data(), memory.size(), &registration_));
  }

 private:
  void forget_memory() {
    if (registration_ != nullptr) ncclCommDeregister(comm_, std::exchange(registration_, nullptr));
  }

  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  void* registration_ = nullptr;  // null too where NCCL registers nothing
};

}  // namespace nanotron::comm
