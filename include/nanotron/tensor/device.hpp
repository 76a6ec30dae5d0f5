#pragma once

// Where the work of one rank is done: an execution space instance (a stream on a GPU), the handles of the
// product libraries bound to it, and the timers its regions report to. Passed explicitly, never implied:
// two Devices are two streams, and their work overlaps.

#include <memory>

#include "nanotron/base/timer.hpp"
#include "nanotron/comm/group.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron {

struct ProductHandles;  // cuBLASLt handle, descriptors and workspace; oneDNN engine, stream, primitives

#ifdef NANOTRON_WITH_CUDA
inline comm::Stream stream_of(const ExecutionSpace& exec) { return comm::Stream(exec.cuda_stream()); }
#else
inline comm::Stream stream_of(const ExecutionSpace&) { return {}; }
#endif

/// Who multiplies: the fastest library, whose order of sums changes with the shapes; or tiles of our own, with which
/// an element of a product depends on its own terms and their order alone (kernels/gemm/gemm.hpp).
enum class GemmMode { library, fixed_order };

class Device {
 public:
  explicit Device(Timers& timers, GemmMode gemm_mode = GemmMode::library)
      : stream_(stream_of(exec_)), timers_(timers), gemm_mode_(gemm_mode) {}
  ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const ExecutionSpace& exec() const { return exec_; }
  /// The same queue, as collectives want it.
  const comm::Stream& stream() const { return stream_; }
  Timers& timers() const { return timers_; }
  GemmMode gemm_mode() const { return gemm_mode_; }
  /// Made, laid out and used by kernels/gemm alone; it lives as long as the device.
  std::shared_ptr<ProductHandles>& products() const { return products_; }
  /// Memory the products may scribble on (packed operands); taken from the arena once, see
  /// kernels::gemm_workspace_bytes.
  const Vector<std::byte>& gemm_workspace() const { return gemm_workspace_; }
  void set_gemm_workspace(const Vector<std::byte>& bytes) { gemm_workspace_ = bytes; }
  /// Waits until everything queued so far is done.
  void fence() const { exec_.fence(); }

 private:
  ExecutionSpace exec_;
  comm::Stream stream_;
  Timers& timers_;
  GemmMode gemm_mode_;
  mutable std::shared_ptr<ProductHandles> products_;
  Vector<std::byte> gemm_workspace_;
};

}  // namespace nanotron
