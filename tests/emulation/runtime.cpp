// The functions of the CUDA runtime, or of HIP, that the program calls, on an emulated GPU (scheduler.hpp,
// device_memory.hpp).
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "emulation/device_memory.hpp"
#include "emulation/gemms.hpp"
#include "emulation/scheduler.hpp"
#include "nanotron/base/gpu_api.hpp"

using namespace nanotron::emulation;

namespace {

struct EventHandle {
  std::shared_ptr<Event> event = std::make_shared<Event>();
  bool has_time = true;
};

nanotron::emulation::Stream& of(gpuStream_t stream) {
  return stream == nullptr ? Scheduler::instance().default_stream()
                           : *reinterpret_cast<nanotron::emulation::Stream*>(stream);
}

EventHandle& of(gpuEvent_t event) { return *reinterpret_cast<EventHandle*>(event); }

void launch(gpuStream_t stream, std::string name, std::function<void()> run) {
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

void copy_to_pinned(const Copy& copy, gpuStream_t stream) {
  if (!reads.overlaps(copy.to, copy.to_bytes())) {
    for (std::size_t r = 0; r < copy.rows; ++r) std::memset(copy.to + r * copy.to_pitch, 0xff, copy.width);
  }
  const Queued::Entry entry = writes.add(copy.to, copy.to_bytes());
  launch(stream, "copy to the host", [copy, entry] {
    copy();
    writes.remove(entry);
  });
}

void copy_from_pinned(const Copy& copy, gpuStream_t stream) {
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
void copy_in_order(const Copy& copy, gpuStream_t stream) {
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

// A GPU for each process, or with NANOTRON_EMULATED_SHARED_GPU one for all.
std::uint64_t gpu_of_process() {
  return std::getenv("NANOTRON_EMULATED_SHARED_GPU") != nullptr ? 1 : static_cast<std::uint64_t>(getpid());
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

gpuError_t gpuGetDeviceCount(int* count) {
  *count = number_of_gpus();
  return *count > 0 ? gpuSuccess : gpuErrorNoDevice;
}
gpuError_t gpuGetDevice(int* device) {
  require_gpu(__func__);
  *device = 0;
  return gpuSuccess;
}
gpuError_t gpuSetDevice(int) {
  require_gpu(__func__);
  return gpuSuccess;
}
gpuError_t gpuGetDeviceProperties(gpuDeviceProp* properties, int) {
  require_gpu(__func__);
  *properties = {};
  std::strcpy(properties->name, "emulated GPU");
  properties->major = 9;
  properties->multiProcessorCount = nanotron::emulation::multiprocessors;
#ifndef NANOTRON_WITH_HIP
  const std::uint64_t id = gpu_of_process();
  std::memcpy(properties->uuid.bytes, &id, sizeof id);
#endif
  return gpuSuccess;
}
gpuError_t gpuDeviceGetPCIBusId(char* id, int length, int) {
  require_gpu(__func__);
  if (length > 0) id[0] = '\0';
#ifdef NANOTRON_WITH_HIP  // by which RCCL tells GPUs apart
  std::snprintf(id, static_cast<std::size_t>(length), "%016llx", static_cast<unsigned long long>(gpu_of_process()));
#endif
  return gpuSuccess;
}
gpuError_t gpuDriverGetVersion(int* version) {
  const char* const driver = std::getenv("NANOTRON_EMULATED_DRIVER");
  *version = driver != nullptr ? std::atoi(driver) : NANOTRON_GPU_VERSION;
  return gpuSuccess;
}
const char* gpuGetErrorName(gpuError_t error) { return error == gpuSuccess ? "no error" : "an emulated error"; }
const char* gpuGetErrorString(gpuError_t error) { return gpuGetErrorName(error); }
gpuError_t gpuGetLastError(void) { return static_cast<gpuError_t>(Scheduler::instance().take_error()); }

gpuError_t gpuMalloc(void** memory, std::size_t bytes) {
  require_gpu(__func__);
  *memory = allocate_device(bytes);
  return *memory != nullptr || bytes == 0 ? gpuSuccess : gpuErrorMemoryAllocation;
}
gpuError_t gpuFree(void* memory) {
  require_gpu(__func__);
  Scheduler::instance().synchronize_all();
  free_device(memory);
  return gpuSuccess;
}
#ifdef NANOTRON_WITH_HIP
hipError_t hipHostMalloc(void** memory, std::size_t bytes, unsigned) {
#else
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
#endif
  require_gpu(__func__);
  *memory = allocate_pinned(bytes);
  return gpuSuccess;
}
gpuError_t gpuFreeHost(void* memory) {
  require_gpu(__func__);
  Scheduler::instance().synchronize_all();
  free_pinned(memory);
  return gpuSuccess;
}

gpuError_t gpuDeviceGetStreamPriorityRange(int* least, int* greatest) {
  require_gpu(__func__);
  *least = 0;
  *greatest = -5;
  return gpuSuccess;
}
gpuError_t gpuStreamCreateWithPriority(gpuStream_t* stream, unsigned flags, int) {
  require_gpu(__func__);
  *stream = reinterpret_cast<gpuStream_t>(Scheduler::instance().create((flags & gpuStreamNonBlocking) == 0));
  return gpuSuccess;
}
gpuError_t gpuStreamCreateWithFlags(gpuStream_t* stream, unsigned flags) {
  return gpuStreamCreateWithPriority(stream, flags, 0);
}
gpuError_t gpuStreamCreate(gpuStream_t* stream) { return gpuStreamCreateWithPriority(stream, gpuStreamDefault, 0); }
gpuError_t gpuStreamDestroy(gpuStream_t stream) {
  require_gpu(__func__);
  Scheduler::instance().destroy(&of(stream));
  return gpuSuccess;
}
gpuError_t gpuStreamSynchronize(gpuStream_t stream) {
  require_gpu(__func__);
  Scheduler::instance().synchronize(of(stream));
  return gpuSuccess;
}
gpuError_t gpuDeviceSynchronize(void) {
  require_gpu(__func__);
  Scheduler::instance().synchronize_all();
  return gpuSuccess;
}
gpuError_t gpuStreamWaitEvent(gpuStream_t stream, gpuEvent_t event, unsigned) {
  require_gpu(__func__);
  Scheduler::instance().wait(of(stream), of(event).event);
  return gpuSuccess;
}

gpuError_t gpuEventCreateWithFlags(gpuEvent_t* event, unsigned flags) {
  require_gpu(__func__);
  *event = reinterpret_cast<gpuEvent_t>(new EventHandle{.has_time = (flags & gpuEventDisableTiming) == 0});
  return gpuSuccess;
}
gpuError_t gpuEventDestroy(gpuEvent_t event) {
  require_gpu(__func__);
  delete &of(event);
  return gpuSuccess;
}
gpuError_t gpuEventRecord(gpuEvent_t event, gpuStream_t stream) {
  require_gpu(__func__);
  Scheduler::instance().record(of(stream), of(event).event);
  return gpuSuccess;
}
gpuError_t gpuEventQuery(gpuEvent_t event) {
  require_gpu(__func__);
  Scheduler::instance().poll();
  if (of(event).event->is_passed()) return gpuSuccess;
  Scheduler::instance().set_error(gpuErrorNotReady);
  return gpuErrorNotReady;
}
gpuError_t gpuEventSynchronize(gpuEvent_t event) {
  require_gpu(__func__);
  Scheduler::instance().synchronize(*of(event).event);
  return gpuSuccess;
}
gpuError_t gpuEventElapsedTime(float* milliseconds, gpuEvent_t begin, gpuEvent_t end) {
  require_gpu(__func__);
  for (const EventHandle* handle : {&of(begin), &of(end)}) {
    if (!handle->has_time || handle->event->time() == Event::Clock::time_point{}) {
      return handle->event->is_passed() ? gpuErrorInvalidResourceHandle : gpuErrorNotReady;
    }
  }
  *milliseconds = std::chrono::duration<float, std::milli>(of(end).event->time() - of(begin).event->time()).count();
  return gpuSuccess;
}

gpuError_t gpuMemcpyAsync(void* to, const void* from, std::size_t bytes, gpuMemcpyKind, gpuStream_t stream) {
  require_gpu(__func__);
  copy_in_order(flat(to, from, bytes), stream);
  return gpuSuccess;
}
gpuError_t gpuMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                            std::size_t rows, gpuMemcpyKind, gpuStream_t stream) {
  require_gpu(__func__);
  constexpr std::size_t largest_pitch = 2147483647;  // gpuDeviceProp::memPitch
  if (std::max(to_pitch, from_pitch) > largest_pitch || std::min(to_pitch, from_pitch) < width)
    return gpuErrorInvalidPitchValue;
  copy_in_order({static_cast<std::byte*>(to), static_cast<const std::byte*>(from), width, rows, to_pitch, from_pitch},
                stream);
  return gpuSuccess;
}
gpuError_t gpuMemcpy(void* to, const void* from, std::size_t bytes, gpuMemcpyKind) {
  require_gpu(__func__);
  copy_in_order(flat(to, from, bytes), nullptr);
  Scheduler::instance().synchronize(of(gpuStream_t{nullptr}));
  return gpuSuccess;
}
gpuError_t gpuMemsetAsync(void* memory, int value, std::size_t bytes, gpuStream_t stream) {
  require_gpu(__func__);
  require_device(memory, bytes, "gpuMemsetAsync");
  launch(stream, "memset", [=] { std::memset(memory, value, bytes); });
  return gpuSuccess;
}

}  // extern "C"
