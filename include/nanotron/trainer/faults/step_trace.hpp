#pragma once

// Which rank computed wrongly, when two computations of the same step give different results. Each rank keeps
// fingerprints of what it gives to every operation between ranks. A rank is at fault if what it gives differs although
// all that had reached it was the same: the first difference in the order of cause and effect. Networks that change
// data look like the rank that received it.

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "nanotron/comm/watch/watched_groups.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::trainer {

/// One call of an operation between ranks on this rank: its start, or the arrival of what others gave.
struct TracedEvent {
  comm::Line line = 0;
  std::uint64_t sequence = 0;  // in its line
  enum class Kind { gives, arrives } kind = Kind::gives;
  std::uint64_t hash = 0;  // of what it gives
};

/// A computation of a step on this rank.
struct ComputedStep {
  std::vector<TracedEvent> events;
  std::vector<std::uint64_t> results;  // hashes of what is not given to anyone
  bool is_cut = false;                 // there were more operations than a trace holds
};

struct StepDifference {
  bool exists = false;     // on any rank
  std::vector<int> ranks;  // of the world, that are at fault, ascending; empty if a truncated trace hides them
};

/// Compares two computations of a step. Collective.
StepDifference compare_steps(const ComputedStep& first, const ComputedStep& second, MPI_Comm world);

/// The events of this rank between begin() and end(), of the first `capacity` operations.
class StepTrace final : public comm::PayloadWatch {
 public:
  static constexpr index_t capacity = 1 << 16;

  /// Allocates. The device must outlive it.
  explicit StepTrace(Device& device);

  void begin();
  void end() { is_on_ = false; }
  /// Waits for the device.
  std::vector<TracedEvent> events() const;
  bool is_cut() const { return is_cut_; }

  std::uint64_t gives(comm::Line line, const void* data, std::size_t bytes) override;
  void arrived(std::uint64_t ticket) override;

 private:
  Device& device_;
  Kokkos::View<std::uint64_t*, MemorySpace> hashes_;  // by operation
  std::vector<TracedEvent> events_;
  std::vector<std::size_t> operation_of_;  // of each event: index in hashes_
  std::vector<std::size_t> started_;       // of each operation: index in events_
  std::unordered_map<comm::Line, std::uint64_t> sequences_;
  std::uint64_t first_ticket_ = 1;  // of this step; those of earlier ones are smaller
  bool is_on_ = false, is_cut_ = false;
};

}  // namespace nanotron::trainer
