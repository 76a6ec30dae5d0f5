#include "nanotron/tensor/host_copy.hpp"

#include "nanotron/base/gpu_api.hpp"
#include "nanotron/base/gpu_calls.hpp"
#include "nanotron/tensor/pinned_memory.hpp"

namespace nanotron {

// Owns the event that is recorded after the copy.
struct HostCopy::State {
  explicit State(std::size_t n) : values(n) {
    NANOTRON_CHECK_GPU(gpuEventCreateWithFlags(&done, gpuEventDisableTiming));
  }
  ~State() { static_cast<void>(gpuEventDestroy(done)); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  PinnedArray<std::int64_t> values;
  std::size_t copied = 0;
  bool is_running = false;
  gpuEvent_t done = nullptr;
};

HostCopy::HostCopy(std::size_t n) : state_(std::make_unique<State>(n)) {}
HostCopy::~HostCopy() = default;

void HostCopy::start(const Device& device, Vector<const std::int64_t> from) {
  const gpuStream_t stream = device.stream().get();
  state_->copied = from.extent(0);
  NANOTRON_CHECK_GPU(gpuMemcpyAsync(state_->values.span().data(), from.data(), state_->copied * sizeof(std::int64_t),
                                    gpuMemcpyDeviceToHost, stream));
  NANOTRON_CHECK_GPU(gpuEventRecord(state_->done, stream));
  state_->is_running = true;
}

bool HostCopy::is_running() const { return state_->is_running; }

void HostCopy::wait() {
  if (!state_->is_running) return;
  NANOTRON_CHECK_GPU(gpuEventSynchronize(state_->done));
  state_->is_running = false;
}

std::span<const std::int64_t> HostCopy::values() const { return state_->values.span().first(state_->copied); }

}  // namespace nanotron
