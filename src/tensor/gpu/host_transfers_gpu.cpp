
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/tensor/host_transfers.hpp"

namespace nanotron {
namespace {

gpuEvent_t make_event() {
  gpuEvent_t event = nullptr;
  NANOTRON_CHECK_GPU(gpuEventCreateWithFlags(&event, gpuEventDisableTiming));
  return event;
}

gpuStream_t make_stream() {
  gpuStream_t stream = nullptr;
  NANOTRON_CHECK_GPU(gpuStreamCreateWithFlags(&stream, gpuStreamNonBlocking));
  return stream;
}

}  // namespace

struct HostTransfers::Streams {
  gpuStream_t out = make_stream(), in = make_stream();
  gpuEvent_t ready = make_event();  // what the copy that starts runs after
  std::vector<gpuEvent_t> done;     // by ticket
  std::vector<Ticket> free;

  Streams() = default;
  ~Streams() {
    for (const gpuStream_t stream : {out, in}) {
      static_cast<void>(gpuStreamSynchronize(stream));
      static_cast<void>(gpuStreamDestroy(stream));
    }
    static_cast<void>(gpuEventDestroy(ready));
    for (const gpuEvent_t event : done) static_cast<void>(gpuEventDestroy(event));
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  Ticket copy(Device& device, gpuStream_t stream, void* to, const void* from, std::size_t bytes) {
    if (free.empty()) {
      free.push_back(done.size());
      done.push_back(make_event());
    }
    const Ticket ticket = free.back();
    free.pop_back();
    NANOTRON_CHECK_GPU(gpuEventRecord(ready, gpu_stream(device.exec())));
    NANOTRON_CHECK_GPU(gpuStreamWaitEvent(stream, ready, 0));
    NANOTRON_CHECK_GPU(gpuMemcpyAsync(to, from, bytes, gpuMemcpyDefault, stream));
    NANOTRON_CHECK_GPU(gpuEventRecord(done[ticket], stream));
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
  NANOTRON_CHECK_GPU(gpuStreamWaitEvent(streams_->in, streams_->done[copy], 0));
  streams_->free.push_back(copy);
  return streams_->copy(device, streams_->in, to, from, bytes);
}

void HostTransfers::wait(Device& device, Ticket ticket) {
  NANOTRON_CHECK_GPU(gpuStreamWaitEvent(gpu_stream(device.exec()), streams_->done[ticket], 0));
  streams_->free.push_back(ticket);
}

}  // namespace nanotron
