#pragma once

// What tests on an emulated GPU share: device memory, and several orders of the same run.

#include <gtest/gtest.h>

#include <vector>

#include "emulation/scheduler.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_api.hpp"

namespace nanotron::test {

/// Device memory with its values.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : size_(values.size()) {
    void* memory = nullptr;
    NANOTRON_CHECK_GPU(gpuMalloc(&memory, size_ * sizeof(T)));
    memory_ = static_cast<T*>(memory);
    if (size_ > 0) {
      NANOTRON_CHECK_GPU(gpuMemcpy(memory_, values.data(), size_ * sizeof(T), gpuMemcpyHostToDevice));
    }
  }
  explicit DeviceArray(std::size_t size) : DeviceArray(std::vector<T>(size)) {}
  ~DeviceArray() { gpuFree(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return memory_; }
  std::size_t size() const { return size_; }
  /// What is there after the work that is queued on the stream.
  std::vector<T> values(gpuStream_t stream) const {
    std::vector<T> host(size_);
    if (size_ > 0) {
      NANOTRON_CHECK_GPU(gpuMemcpyAsync(host.data(), memory_, size_ * sizeof(T), gpuMemcpyDeviceToHost, stream));
    }
    return host;
  }

 private:
  T* memory_ = nullptr;
  std::size_t size_;
};

/// A stream as Kokkos makes one: blocking, in CUDA's sense.
class OwnStream {
 public:
  OwnStream() { NANOTRON_CHECK_GPU(gpuStreamCreate(&stream_)); }
  ~OwnStream() { gpuStreamDestroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  gpuStream_t get() const { return stream_; }

 private:
  gpuStream_t stream_ = nullptr;
};

/// Queues f as a kernel.
template <class F>
void launch(gpuStream_t stream, F f) {
  emulation::Scheduler::instance().launch_kernel(*reinterpret_cast<emulation::Stream*>(stream), "a test's kernel", f);
}

}  // namespace nanotron::test
