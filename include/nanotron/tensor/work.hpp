#pragma once

// The work of a step, counted instead of done: on a planning Device kernels only say what they would move and compute.
// From the list a roofline (Williams, Waterman and Patterson 2009) predicts the time on a named machine.

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/comm/operation_log.hpp"

namespace nanotron {

/// `count` equal GEMMs: (m, k) times (k, n). For attention: m queries, n keys, k = head_dim, heads of all sequences.
struct GemmExtents {
  index_t m = 0, n = 0, k = 0, count = 0;
  bool operator==(const GemmExtents&) const = default;
};

/// Work of one kernel call. Bytes of device memory, once for each pass over an operand that is too large for caches.
struct Work {
  double read = 0.0;
  double written = 0.0;
  double from_host = 0.0, to_host = 0.0;  // bytes of host memory (MemoryKind::host_optimizer)
  double flops = 0.0;                     // of GEMMs; multiplication and addition are two
  ScalarType type = ScalarType::fp32;     // of the GEMMs' operands
  GemmExtents gemm{};                     // count = 0: no GEMM

  double bytes() const { return read + written; }
  bool operator==(const Work&) const = default;
};

/// Calls of one kernel with equal work.
struct WorkRow {
  std::string_view kernel;
  Work work;
  std::uint64_t calls = 0;
  std::uint64_t launches = 0;
};

/// What a rank does, one after another.
struct StepEvent {
  enum class Kind : std::uint8_t {
    kernel,  // index: its row
    start,   // index: into operations(); the ticket is the number of starts so far, from 1
    wait,    // index: the ticket
    finish   // of all operations that are started
  };
  Kind kind;
  std::uint32_t index;
};

/// Whether a list keeps the order of kernels and operations too, or only the number of calls.
enum class EventOrder { forgotten, kept };

class WorkList final : public comm::OperationLog {
 public:
  explicit WorkList(EventOrder order = EventOrder::forgotten) : order_(order) {}

  /// kernel: a string literal. Launches up to close() are its own; a kernel opened in between is closed before.
  void open(std::string_view kernel, const Work& work);
  void close();
  void add_launch();
  /// A wait of the host for the device.
  void add_wait() { ++waits_; }
  std::uint64_t started(const comm::PlannedOperation& operation) override;
  void waited(std::uint64_t ticket) override { add_event(StepEvent::Kind::wait, ticket); }
  void add_finish() { add_event(StepEvent::Kind::finish, 0); }

  const std::vector<WorkRow>& rows() const { return rows_; }
  std::uint64_t waits() const { return waits_; }
  const std::vector<comm::PlannedOperation>& operations() const { return operations_; }  // all that differ
  const std::vector<StepEvent>& events() const { return events_; }                       // empty where forgotten

 private:
  void add_event(StepEvent::Kind kind, std::uint64_t index) {
    if (order_ == EventOrder::kept) events_.push_back({kind, static_cast<std::uint32_t>(index)});
  }
  std::size_t row_of(std::string_view kernel, const Work& work);

  EventOrder order_;
  std::vector<WorkRow> rows_;
  std::vector<comm::PlannedOperation> operations_;
  std::vector<StepEvent> events_;
  std::unordered_multimap<std::uint64_t, std::uint32_t> row_of_hash_;
  std::uint64_t starts_ = 0;
  std::vector<std::size_t> open_;
  std::uint64_t waits_ = 0;
};

}  // namespace nanotron
