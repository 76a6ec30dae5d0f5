#pragma once

// Static memory plan: all device memory of a run, allocated once.
//
// A component is constructed twice from the same code: first with a planning arena, which returns null views
// and only adds up bytes, then with the real one, sized by that plan. So the plan printed before a job is
// queued cannot differ from the memory the job takes.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "nanotron/tensor/tensor.hpp"

namespace nanotron {

enum class MemoryKind { parameters, gradients, optimizer, activations, workspace };
inline constexpr std::size_t memory_kinds = 5;
const char* name_of(MemoryKind kind);

/// Bytes per kind.
struct MemoryPlan {
  std::array<std::size_t, memory_kinds> bytes{};
  std::uint64_t offsets = 0;  // a hash of all offsets
  std::size_t total() const;
  std::string table() const;  // one line per kind, in MiB
};

class Arena {
 public:
  static Arena planning(Processor processor = built_for);  // owns nothing; every view it returns is null
  explicit Arena(const MemoryPlan& plan);                  // allocates plan.total() bytes on the device, zeroed
  /// The same in the caller's memory of the device, at least bytes_of(plan), which outlives the arena.
  Arena(const MemoryPlan& plan, std::span<std::byte> memory);
  static std::size_t bytes_of(const MemoryPlan& plan);
  ~Arena();
  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) = delete;

  bool is_planning() const { return planning_; }
  Processor processor() const { return processor_; }
  const MemoryPlan& plan() const { return plan_; }
  /// All of its memory; empty when planning.
  std::span<std::byte> memory() const { return {memory_, memory_ == nullptr ? 0 : bytes_of(plan_)}; }

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
  void clear();

  bool planning_ = true;
  bool owns_ = true;
  Processor processor_ = built_for;
  MemoryPlan plan_;       // real: what was planned; planning: the bytes so far
  std::size_t used_ = 0;  // bytes handed out by a real arena
  std::byte* memory_ = nullptr;
};

}  // namespace nanotron
