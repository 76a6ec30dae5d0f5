#pragma once

// What this rank did last, for a thread that watches it: the open regions, and a ring of the last operations between
// ranks. The thread of the run writes; any thread reads at any time. All shared state is atomic: a write costs a few
// plain stores, nothing waits, and only group() and snapshot() allocate.

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "nanotron/base/flight_snapshot.hpp"

namespace nanotron {

class FlightRecorder {
 public:
  static constexpr std::size_t ring_size = 256, max_depth = 32, max_groups = 128;
  enum class Kind {
    blocking,  // the host waits for it from now on
    started,   // it is complete after end()
    queued     // on a device: the host does not learn when it is complete
  };

  FlightRecorder();
  /// While off, operations are not recorded.
  void turn(bool on) { on_.store(on, std::memory_order_relaxed); }
  bool is_on() const { return on_.load(std::memory_order_relaxed); }

  /// Registers a group and returns its number; an existing group keeps its number. Group 0 has no ranks and represents
  /// groups beyond max_groups.
  int group(const std::string& name, const std::vector<int>& ranks);
  /// From now on take_proof() includes the group's operations. me: this rank in the world. On all ranks of the group.
  void compare(int group, int me);

  /// Records nothing while off, or inside a blocking operation (a library's call on behalf of ours). alike: hash of
  /// what is the same on all ranks of the group; 0: not compared.
  Recorded begin(int group, const char* name, std::uint64_t bytes, Kind kind, std::uint64_t alike = 0);
  void wait_for(const Recorded& operation, const char* name);  // the host waits for a started one
  void end(const Recorded& operation);                         // complete, and not waited for
  void stop_waiting();                                         // because of an error

  void enter(const char* region);
  void leave();
  void at_layer(std::int32_t layer);  // -1: none
  void at_part(const char* part);     // of a layer
  void begin_step(std::int64_t step);
  void step_done(std::int64_t ns);    // wall-clock time of the step
  void was_stopped(std::int64_t ns);  // by a signal since begin_step: not part of the step's time

  /// A value whose sum over all ranks of the world is 0 if the ranks of each compared group have begun operations with
  /// the same hashes in the same order, and else is not 0, except by chance. All ranks call it at the same point.
  std::uint64_t take_proof();
  /// The operations of ranks differ: this ends the run. Waits until the watching thread ends the process.
  enum class Found {
    by_proof,   // by take_proof(), on all ranks of the world
    by_library  // in an operation, perhaps on this rank only
  };
  [[noreturn]] void wait_for_verdict(Found found);
  bool waits_for_verdict() const { return waits_for_verdict_.load(std::memory_order_acquire); }

  /// Changes with everything that this rank does.
  std::uint64_t events() const { return events_.load(std::memory_order_acquire); }
  std::int64_t steps_done() const { return steps_done_.load(std::memory_order_acquire); }
  FlightSnapshot snapshot() const;
  static std::int64_t now();  // ns of the monotonic clock

 private:
  struct Entry {
    std::atomic<std::uint64_t> version{0};  // odd: being written
    std::atomic<int> group{0};
    std::atomic<std::uint64_t> sequence{0}, bytes{0};
    std::atomic<const char*> name{nullptr}, phase{nullptr}, part{nullptr};
    std::atomic<std::int32_t> layer{-1};
    std::atomic<std::int64_t> step{0}, begin{0}, end{0};
  };
  void moved();
  bool holds(const Recorded& operation) const;
  bool is_queued(const Recorded& operation) const;
  bool read(const Entry& entry, OperationRecord& record) const;

  std::atomic<bool> on_{false};
  std::atomic<std::uint64_t> events_{0}, count_{0};
  std::array<Entry, ring_size> ring_;
  std::array<std::atomic<std::uint64_t>, max_groups> entered_{};
  std::array<std::atomic<const char*>, max_depth> regions_{};
  std::atomic<std::int32_t> depth_{0}, layer_{-1};
  std::atomic<const char*> part_{nullptr}, waits_in_{nullptr};
  std::atomic<std::int64_t> step_{0}, longest_step_{0}, steps_done_{0}, waits_since_{0}, stopped_{0};
  std::atomic<int> waits_group_{0};
  std::atomic<std::uint64_t> waits_sequence_{0};
  // One for each compared group. weight: of this rank in the sum; the weights of a group's ranks add up to 0.
  struct Alike {
    std::atomic<std::uint64_t> weight{0}, all{0}, step{0}, proven{0}, proven_before{0};
  };
  std::array<Alike, max_groups> alike_;
  std::int64_t proven_step_ = 0;
  std::atomic<bool> waits_for_verdict_{false}, differs_{false};
  mutable std::mutex groups_mutex_;
  std::vector<RecordedGroup> groups_;
};

/// The recorder of this process. Global, like MPI: a wait inside a library has no access to our objects.
FlightRecorder& flight_recorder();

/// A region of the recorder only, for what no timer measures.
class NotedRegion {
 public:
  explicit NotedRegion(const char* name) { flight_recorder().enter(name); }
  ~NotedRegion() { flight_recorder().leave(); }
  NotedRegion(const NotedRegion&) = delete;
  NotedRegion& operator=(const NotedRegion&) = delete;
};

/// A layer of the model from here to the end of the scope.
class NotedLayer {
 public:
  explicit NotedLayer(std::int64_t layer) { flight_recorder().at_layer(static_cast<std::int32_t>(layer)); }
  ~NotedLayer() {
    flight_recorder().at_layer(-1);
    flight_recorder().at_part(nullptr);
  }
  NotedLayer(const NotedLayer&) = delete;
  NotedLayer& operator=(const NotedLayer&) = delete;
};

}  // namespace nanotron
