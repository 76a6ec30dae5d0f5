#pragma once

// Static memory plan: all device memory of a run, allocated once, and the host memory that its kernels read and write.
//
// A component is constructed twice from the same code: first with a planning arena, which returns null views
// and only adds up bytes, then with the real one, sized by that plan. So the plan printed before a job is
// queued cannot differ from the memory the job takes.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "nanotron/tensor/pinned_memory.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron {

/// The last two are page-locked host memory, which kernels and copies of a GPU reach over the link between the two
/// (unified virtual addressing); the others are memory of the device.
enum class MemoryKind { parameters, gradients, optimizer, activations, workspace, host_optimizer, host_activations };
inline constexpr std::size_t memory_kinds = 7;
const char* name_of(MemoryKind kind);

/// Bytes per kind.
struct MemoryPlan {
  std::array<std::size_t, memory_kinds> bytes{};
  std::uint64_t offsets = 0;  // a hash of all offsets
  std::size_t total() const;  // of the device
  std::size_t on_host() const;
  /// Memory in which an arena of each of these fits, at least one: the largest, with as much of the host as any has.
  static MemoryPlan covering(std::span<const MemoryPlan> plans);
  std::string table() const;  // a line for each kind of the device and one of the total, in MiB; one of the host if any
};

class Arena {
 public:
  static Arena planning(Processor processor = built_for);  // owns nothing; every view it returns is null
  explicit Arena(const MemoryPlan& plan);                  // allocates what was planned, zeroed
  /// The same in the caller's memory of the device, at least bytes_of(plan), which outlives the arena.
  Arena(const MemoryPlan& plan, std::span<std::byte> memory);
  /// In the memory of another arena, which outlives it: at most its size on the device and on the host.
  Arena(const MemoryPlan& plan, const Arena& whole);
  static std::size_t bytes_of(const MemoryPlan& plan);
  ~Arena();
  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) = delete;

  bool is_planning() const { return planning_; }
  Processor processor() const { return processor_; }
  const MemoryPlan& plan() const { return plan_; }

  /// Zero-initialised memory for the life of the arena, 256-byte aligned; null when planning.
  /// Error (system_error) when more is taken than was planned.
  template <class T>
  Vector<T> take(MemoryKind kind, index_t n) {
    return Vector<T>(static_cast<T*>(take_bytes(kind, static_cast<std::size_t>(n) * sizeof(T))), n);
  }
  template <class T>
  Matrix<T> take(MemoryKind kind, index_t rows, index_t columns) {
    return Matrix<T>(static_cast<T*>(take_bytes(kind, static_cast<std::size_t>(rows * columns) * sizeof(T))), rows,
                     columns);
  }

 private:
  explicit Arena(Processor processor) : processor_(processor) {}
  void* take_bytes(MemoryKind kind, std::size_t bytes);
  void take_host_memory();
  void clear();
  static std::size_t host_bytes_of(const MemoryPlan& plan);

  bool planning_ = true;
  bool owns_ = true;
  Processor processor_ = built_for;
  MemoryPlan plan_;  // real: what was planned; planning: the bytes so far
  // Of the device and of the host: bytes handed out by a real arena, and its memory.
  std::size_t used_ = 0, host_used_ = 0;
  std::byte *memory_ = nullptr, *host_memory_ = nullptr;
  std::unique_ptr<PinnedMemory> own_host_memory_;
};

}  // namespace nanotron
