#pragma once

// Where the work of one rank runs: an execution space instance (a stream on a GPU), the handles of the
// GEMM libraries bound to it, and the timers its regions report to. Passed explicitly, never a global.
// exec() is Kokkos' default instance: all Devices of a rank share its stream.

#include <memory>
#include <optional>
#include <string>

#include "nanotron/base/error.hpp"
#include "nanotron/base/gpu_calls.hpp"
#include "nanotron/base/timer.hpp"
#include "nanotron/comm/group.hpp"
#include "nanotron/tensor/tensor.hpp"
#include "nanotron/tensor/work.hpp"

namespace nanotron {

struct AttentionPlans;  // cuDNN handle and plans
struct GemmHandles;     // handles of the libraries of a GPU, cached plans; oneDNN engine and primitives

#ifdef NANOTRON_WITH_GPU
inline gpuStream_t gpu_stream(const ExecutionSpace& exec) {
#ifdef NANOTRON_WITH_HIP
  return exec.hip_stream();
#else
  return exec.cuda_stream();
#endif
}
inline comm::Stream stream_of(const ExecutionSpace& exec) { return comm::Stream(gpu_stream(exec)); }
/// Like a Kokkos fence, but Error(system_error) if work before it failed: Kokkos would end the process.
inline void wait_for(const ExecutionSpace& exec) { NANOTRON_CHECK_GPU(gpuStreamSynchronize(gpu_stream(exec))); }
#else
inline comm::Stream stream_of(const ExecutionSpace&) { return {}; }
inline void wait_for(const ExecutionSpace&) {}
#endif

/// What runs GEMMs: the fastest library, whose order of summation depends on the shape; or kernels of our own, where an
/// element of C depends only on its own terms and their order (kernels/gemm/gemm.hpp).
enum class GemmMode { library, fixed_order };

class Device {
 public:
  explicit Device(Timers& timers, GemmMode gemm_mode = GemmMode::library)
      : exec_(std::in_place), stream_(stream_of(*exec_)), timers_(timers), gemm_mode_(gemm_mode) {}
  /// For components that are constructed with Arena::planning(): nothing runs on it, and it needs neither Kokkos nor a
  /// GPU. Kernels that are called on it add what they would do to `work`.
  static Device planning(Timers& timers, GemmMode gemm_mode, Processor processor = built_for,
                         WorkList* work = nullptr) {
    return Device(gemm_mode, timers, processor, work);
  }
  ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const ExecutionSpace& exec() const { return exec_.value(); }
  /// The stream of exec(), for collectives.
  const comm::Stream& stream() const { return stream_; }
  Timers& timers() const { return timers_; }
  GemmMode gemm_mode() const { return gemm_mode_; }
  /// Defined, created and used only by kernels/gemm; lives as long as the device.
  std::shared_ptr<GemmHandles>& gemm_handles() const { return gemm_handles_; }
  /// The same for kernels/attention.
  std::shared_ptr<AttentionPlans>& attention_plans() const { return attention_plans_; }
  /// Scratch memory of GEMMs (packed operands), taken from the arena once; see
  /// kernels::gemm_workspace_bytes.
  const Vector<std::byte>& gemm_workspace() const { return gemm_workspace_; }
  void set_gemm_workspace(const Vector<std::byte>& bytes) { gemm_workspace_ = bytes; }
  /// Waits until everything queued so far is done. Error(system_error) if a kernel failed or was not launched.
  void fence() const {
    if (is_planning()) return wait_planned();
    wait_for(exec());
    exec().fence();
    require_launched();
  }

  bool is_planning() const { return !exec_.has_value(); }
  Processor processor() const { return processor_; }
  /// Where planned kernels are counted; may be null.
  WorkList* work() const { return work_; }
  /// Replaces a launch, and a wait of the host, when planning.
  void launch_planned() const {
    if (work_ != nullptr) work_->add_launch();
  }
  void wait_planned() const {
    if (work_ != nullptr) work_->add_wait();
  }

 private:
  Device(GemmMode gemm_mode, Timers& timers, Processor processor, WorkList* work)
      : timers_(timers), gemm_mode_(gemm_mode), processor_(processor), work_(work) {}

  std::optional<ExecutionSpace> exec_;  // empty when planning
  comm::Stream stream_;
  Timers& timers_;
  GemmMode gemm_mode_;
  Processor processor_ = built_for;
  WorkList* work_ = nullptr;
  mutable std::shared_ptr<GemmHandles> gemm_handles_;
  mutable std::shared_ptr<AttentionPlans> attention_plans_;
  Vector<std::byte> gemm_workspace_;
};

/// This rank's GPU, as CUDA or HIP names it ("NVIDIA H200"); empty in a host build.
std::string device_name();

/// Its PCI bus id, as NVML names devices: "00000000:3b:00.0"; empty in a host build.
std::string device_bus_id();

}  // namespace nanotron
