// The functions of the CUDA runtime that the program calls, on an emulated GPU (scheduler.hpp, device_memory.hpp).
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "emulation/device_memory.hpp"
#include "emulation/gemms.hpp"
#include "emulation/scheduler.hpp"

using namespace nanotron::emulation;

namespace {

struct EventHandle {
  std::shared_ptr<Event> event = std::make_shared<Event>();
  bool has_time = true;
};

nanotron::emulation::Stream& of(cudaStream_t stream) {
  return stream == nullptr ? Scheduler::instance().default_stream()
                           : *reinterpret_cast<nanotron::emulation::Stream*>(stream);
}

EventHandle& of(cudaEvent_t event) { return *reinterpret_cast<EventHandle*>(event); }

void launch(cudaStream_t stream, std::string name, std::function<void()> run) {
  Scheduler::instance().launch(of(stream), kernel(std::move(name), std::move(run)));
}

// Rows of `width` bytes, `to_pitch` and `from_pitch` apart.
struct Copy {
  std::byte* to;
  const std::byte* from;
  std::size_t width, rows, to_pitch, from_pitch;

  void operator()() const {
    for (std::size_t r = 0; r < rows; ++r) std::memcpy(to + r * to_pitch, from + r * from_pitch, width);
  }
  std::size_t to_bytes() const { return rows == 0 ? 0 : (rows - 1) * to_pitch + width; }
  std::size_t from_bytes() const { return rows == 0 ? 0 : (rows - 1) * from_pitch + width; }
};

std::uint64_t hash_of(const Copy& copy) {
  std::uint64_t hash = 0;
  for (std::size_t r = 0; r < copy.rows; ++r)
    hash = XXH3_64bits_withSeed(copy.from + r * copy.from_pitch, copy.width, hash);
  return hash;
}

// Pinned memory of copies that are queued and have not run.
class Queued {
 public:
  using Entry = std::list<std::pair<const std::byte*, const std::byte*>>::iterator;

  Entry add(const std::byte* begin, std::size_t bytes) { return ranges_.insert(ranges_.end(), {begin, begin + bytes}); }
  void remove(Entry entry) { ranges_.erase(entry); }
  bool overlaps(const std::byte* begin, std::size_t bytes) const {
    return std::any_of(ranges_.begin(), ranges_.end(),
                       [&](const auto& range) { return range.first < begin + bytes && begin < range.second; });
  }

 private:
  std::list<std::pair<const std::byte*, const std::byte*>> ranges_;
};
Queued reads, writes;  // of copies to the device, and to the host

void copy_to_pinned(const Copy& copy, cudaStream_t stream) {
  if (!reads.overlaps(copy.to, copy.to_bytes())) {
    for (std::size_t r = 0; r < copy.rows; ++r) std::memset(copy.to + r * copy.to_pitch, 0xff, copy.width);
  }
  const Queued::Entry entry = writes.add(copy.to, copy.to_bytes());
  launch(stream, "copy to the host", [copy, entry] {
    copy();
    writes.remove(entry);
  });
}

void copy_from_pinned(const Copy& copy, cudaStream_t stream) {
  const bool is_watched = !writes.overlaps(copy.from, copy.from_bytes());
  const std::uint64_t hash = is_watched ? hash_of(copy) : 0;
  const Queued::Entry entry = reads.add(copy.from, copy.from_bytes());
  launch(stream, "copy to the device", [copy, is_watched, hash, entry] {
    if (is_watched && hash_of(copy) != hash) fault("a pinned buffer was changed before the copy from it ran");
    copy();
    reads.remove(entry);
  });
}

// From pageable memory: what the source holds now is copied. Into it: done at return. Pinned memory is read and written
// when the stream gets there: until then it is poisoned as a destination, and must not change as a source. Of a copy
// of what another copy writes, the order of the streams alone says that it may.
void copy_in_order(const Copy& copy, cudaStream_t stream) {
  if (copy.width == 0 || copy.rows == 0) return;
  const bool to_device = is_device(copy.to), from_device = is_device(copy.from);
  if (to_device) require_device(copy.to, copy.to_bytes(), "a copy");
  if (from_device) require_device(copy.from, copy.from_bytes(), "a copy");
  if (from_device && !to_device) {
    if (is_pinned(copy.to)) return copy_to_pinned(copy, stream);
    launch(stream, "copy to the host", copy);
    Scheduler::instance().synchronize(of(stream));
  } else if (!from_device && is_pinned(copy.from)) {
    copy_from_pinned(copy, stream);
  } else if (!from_device) {
    auto held = std::make_shared<std::vector<std::byte>>(copy.from, copy.from + copy.from_bytes());
    Copy later = copy;
    later.from = held->data();
    launch(stream, "copy to the device", [later, held] { later(); });
  } else {
    launch(stream, "copy on the device", copy);
  }
}

int number_of_gpus() {
  const char* gpus = std::getenv("NANOTRON_EMULATED_GPUS");
  return gpus != nullptr ? std::atoi(gpus) : 1;
}

// For each function that CUDA refuses without a GPU.
void require_gpu(const char* function) {
  if (number_of_gpus() == 0) fault(fmt::format("{} is called where there is no GPU", function));
}

Copy flat(void* to, const void* from, std::size_t bytes) {
  return {static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, 1, bytes, bytes};
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = number_of_gpus();
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int* device) {
  require_gpu(__func__);
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  require_gpu(__func__);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  require_gpu(__func__);
  *properties = {};
  std::strcpy(properties->name, "emulated GPU");
  properties->major = 9;
  properties->multiProcessorCount = nanotron::emulation::multiprocessors;
  // A GPU for each process, or with NANOTRON_EMULATED_SHARED_GPU one for all.
  const bool shared = std::getenv("NANOTRON_EMULATED_SHARED_GPU") != nullptr;
  const std::uint64_t id = shared ? 1 : static_cast<std::uint64_t>(getpid());
  std::memcpy(properties->uuid.bytes, &id, sizeof id);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int) {
  require_gpu(__func__);
  if (length > 0) id[0] = '\0';
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  const char* const driver = std::getenv("NANOTRON_EMULATED_DRIVER");
  *version = driver != nullptr ? std::atoi(driver) : CUDART_VERSION;
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t error) { return error == cudaSuccess ? "cudaSuccess" : "an emulated error"; }
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
cudaError_t cudaGetLastError(void) { return static_cast<cudaError_t>(Scheduler::instance().take_error()); }

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  require_gpu(__func__);
  *memory = allocate_device(bytes);
  return *memory != nullptr || bytes == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* memory) {
  require_gpu(__func__);
  Scheduler::instance().synchronize_all();
  free_device(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  require_gpu(__func__);
  *memory = allocate_pinned(bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  require_gpu(__func__);
  Scheduler::instance().synchronize_all();
  free_pinned(memory);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  require_gpu(__func__);
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  require_gpu(__func__);
  *stream = reinterpret_cast<cudaStream_t>(Scheduler::instance().create((flags & cudaStreamNonBlocking) == 0));
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  require_gpu(__func__);
  Scheduler::instance().destroy(&of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  require_gpu(__func__);
  Scheduler::instance().synchronize(of(stream));
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
  require_gpu(__func__);
  Scheduler::instance().synchronize_all();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  require_gpu(__func__);
  Scheduler::instance().wait(of(stream), of(event).event);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  require_gpu(__func__);
  *event = reinterpret_cast<cudaEvent_t>(new EventHandle{.has_time = (flags & cudaEventDisableTiming) == 0});
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  require_gpu(__func__);
  delete &of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  require_gpu(__func__);
  Scheduler::instance().record(of(stream), of(event).event);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  require_gpu(__func__);
  Scheduler::instance().poll();
  if (of(event).event->is_passed()) return cudaSuccess;
  Scheduler::instance().set_error(cudaErrorNotReady);
  return cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  require_gpu(__func__);
  Scheduler::instance().synchronize(*of(event).event);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  require_gpu(__func__);
  for (const EventHandle* handle : {&of(begin), &of(end)}) {
    if (!handle->has_time || handle->event->time() == Event::Clock::time_point{}) {
      return handle->event->is_passed() ? cudaErrorInvalidResourceHandle : cudaErrorNotReady;
    }
  }
  *milliseconds = std::chrono::duration<float, std::milli>(of(end).event->time() - of(begin).event->time()).count();
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  require_gpu(__func__);
  copy_in_order(flat(to, from, bytes), stream);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t rows, cudaMemcpyKind, cudaStream_t stream) {
  require_gpu(__func__);
  constexpr std::size_t largest_pitch = 2147483647;  // cudaDeviceProp::memPitch
  if (std::max(to_pitch, from_pitch) > largest_pitch || std::min(to_pitch, from_pitch) < width)
    return cudaErrorInvalidPitchValue;
  copy_in_order({static_cast<std::byte*>(to), static_cast<const std::byte*>(from), width, rows, to_pitch, from_pitch},
                stream);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  require_gpu(__func__);
  copy_in_order(flat(to, from, bytes), nullptr);
  Scheduler::instance().synchronize(of(cudaStream_t{nullptr}));
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  require_gpu(__func__);
  require_device(memory, bytes, "cudaMemsetAsync");
  launch(stream, "memset", [=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}

}  // extern "C"
