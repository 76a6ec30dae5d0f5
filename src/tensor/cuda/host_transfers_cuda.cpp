#include <cuda_runtime_api.h>

#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/tensor/host_transfers.hpp"

namespace nanotron {
namespace {

cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  NANOTRON_CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  NANOTRON_CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

}  // namespace

struct HostTransfers::Streams {
  cudaStream_t out = make_stream(), in = make_stream();
  cudaEvent_t ready = make_event();  // what the copy that starts runs after
  std::vector<cudaEvent_t> done;     // by ticket
  std::vector<Ticket> free;

  Streams() = default;
  ~Streams() {
    for (const cudaStream_t stream : {out, in}) {
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
    cudaEventDestroy(ready);
    for (const cudaEvent_t event : done) cudaEventDestroy(event);
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  Ticket copy(Device& device, cudaStream_t stream, void* to, const void* from, std::size_t bytes) {
    if (free.empty()) {
      free.push_back(done.size());
      done.push_back(make_event());
    }
    const Ticket ticket = free.back();
    free.pop_back();
    NANOTRON_CHECK_CUDA(cudaEventRecord(ready, device.exec().cuda_stream()));
    NANOTRON_CHECK_CUDA(cudaStreamWaitEvent(stream, ready, 0));
    NANOTRON_CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
    NANOTRON_CHECK_CUDA(cudaEventRecord(done[ticket], stream));
    return ticket;
  }
};

HostTransfers::HostTransfers() : streams_(std::make_unique<Streams>()) {}
HostTransfers::~HostTransfers() = default;

HostTransfers::Ticket HostTransfers::to_host(Device& device, const std::byte* from, std::byte* to, std::size_t bytes) {
  return streams_->copy(device, streams_->out, to, from, bytes);
}

HostTransfers::Ticket HostTransfers::to_device(Device& device, const std::byte* from, std::byte* to,
                                               std::size_t bytes) {
  return streams_->copy(device, streams_->in, to, from, bytes);
}

HostTransfers::Ticket HostTransfers::to_device_after(Ticket copy, Device& device, const std::byte* from, std::byte* to,
                                                     std::size_t bytes) {
  NANOTRON_CHECK_CUDA(cudaStreamWaitEvent(streams_->in, streams_->done[copy], 0));
  streams_->free.push_back(copy);
  return streams_->copy(device, streams_->in, to, from, bytes);
}

void HostTransfers::wait(Device& device, Ticket ticket) {
  NANOTRON_CHECK_CUDA(cudaStreamWaitEvent(device.exec().cuda_stream(), streams_->done[ticket], 0));
  streams_->free.push_back(ticket);
}

}  // namespace nanotron
