#include <fmt/format.h>

#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/base/gpu_calls.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/pinned_memory.hpp"
#include "nanotron/tensor/stream_timers.hpp"

namespace nanotron {
namespace {

gpuDeviceProp properties() {
  int device = 0;
  gpuDeviceProp found{};
  NANOTRON_CHECK_GPU(gpuGetDevice(&device));
  NANOTRON_CHECK_GPU(gpuGetDeviceProperties(&found, device));
  return found;
}

}  // namespace

std::string device_name() { return properties().name; }

std::string device_bus_id() {
  const gpuDeviceProp p = properties();
  return fmt::format("{:08x}:{:02x}:{:02x}.0", p.pciDomainID, p.pciBusID, p.pciDeviceID);
}

PinnedMemory::PinnedMemory(std::size_t bytes) {
  if (bytes == 0) return;
  void* memory = nullptr;
  NANOTRON_CHECK_GPU(gpuMallocHost(&memory, bytes));
  data_ = static_cast<std::byte*>(memory);
}
PinnedMemory::~PinnedMemory() { static_cast<void>(gpuFreeHost(data_)); }

namespace {

// Marks the stream at each start and stop. Owns the events; marks that were read give theirs to later ones.
class StreamTimers final : public Timers {
 public:
  StreamTimers(const comm::Stream& stream, TimerDetail detail) : stream_(stream), detail_(detail) {}
  ~StreamTimers() override {
    for (const gpuEvent_t event : events_) static_cast<void>(gpuEventDestroy(event));
  }

  void start(const char* name) override {
    push_profiling_region(name);
    open_.push_back(detail_ == TimerDetail::all || is_phase(name));
    if (open_.back()) mark(name);
  }
  void stop() override {
    if (open_.back()) mark(nullptr);
    open_.pop_back();
    pop_profiling_region();
    if (open_.empty()) read_passed();
  }

 protected:
  void settle() override {
    if (read_ < marks_.size()) NANOTRON_CHECK_GPU(gpuEventSynchronize(marks_.back().event));
    read_passed();
  }

 private:
  struct Mark {
    const char* name;  // of the region that begins; null: the innermost one ends
    gpuEvent_t event;
  };

  void mark(const char* name) {
    marks_.push_back({name, take_event()});
    NANOTRON_CHECK_GPU(gpuEventRecord(marks_.back().event, stream_.get()));
  }

  gpuEvent_t take_event() {
    if (free_.empty()) {
      gpuEvent_t made = nullptr;
      NANOTRON_CHECK_GPU(gpuEventCreateWithFlags(&made, gpuEventDefault));
      events_.push_back(made);
      free_.push_back(made);
    }
    const gpuEvent_t event = free_.back();
    free_.pop_back();
    return event;
  }

  // Times are sums of the steps from mark to mark: CUDA and HIP give them in fp32, which a long run would exceed.
  void read_passed() {
    for (; read_ < marks_.size(); ++read_) {
      const auto& [name, event] = marks_[read_];
      if (!is_passed(event)) return;
      if (last_ != nullptr) {
        float milliseconds = 0;
        NANOTRON_CHECK_GPU(gpuEventElapsedTime(&milliseconds, last_, event));
        now_ += std::llround(static_cast<double>(milliseconds) * 1e6);
        free_.push_back(last_);
      }
      last_ = event;
      if (name != nullptr) {
        start_at(name, now_);
      } else {
        stop_at(now_);
      }
    }
    marks_.clear();
    read_ = 0;
  }

  comm::Stream stream_;
  TimerDetail detail_;
  std::vector<char> open_;     // regions: whether each is timed
  std::vector<Mark> marks_;    // in the stream's order
  std::size_t read_ = 0;       // so many of them
  gpuEvent_t last_ = nullptr;  // of the mark read last, at now_
  std::int64_t now_ = 0;       // ns since the first mark
  std::vector<gpuEvent_t> events_, free_;
};

}  // namespace

std::unique_ptr<Timers> make_stream_timers(const comm::Stream& stream, TimerDetail detail) {
  return std::make_unique<StreamTimers>(stream, detail);
}

}  // namespace nanotron
