#pragma once

// Where the time of a run goes: named, nested regions. The same names reach Kokkos Tools and, in CUDA builds, NVTX.

#include <cstdint>
#include <string>
#include <vector>

namespace nanotron {

/// Seconds of a monotonic clock.
double wall_seconds();

struct TimerRow {
  const char* name = nullptr;
  std::uint64_t calls = 0;
  double inclusive = 0.0;  // seconds in the region; a region inside itself is counted once
  double exclusive = 0.0;  // the same without the regions inside it
};

/// A region that is reported separately, with all regions in it that are not phases.
struct Phase {
  enum class Kind {
    open,   // phases inside it count separately
    closed  // everything inside it belongs to it
  };
  const char* name;
  Kind kind = Kind::open;
};

/// Host time per region name; of a CUDA stream: tensor/stream_timers.hpp. Names are string literals (kept by pointer,
/// merged by text in rows()). Nothing is allocated after the first visit of a name. One thread.
class Timers {
 public:
  Timers();
  virtual ~Timers() = default;
  Timers(const Timers&) = delete;
  Timers& operator=(const Timers&) = delete;

  /// start and stop must nest; prefer Region.
  virtual void start(const char* name);
  virtual void stop();

  /// In the order of first visit. Regions still open are not counted.
  std::vector<TimerRow> rows();
  /// rows() as text, the largest exclusive time first, with the share of `total` seconds.
  std::string table(double total);
  /// Regions of these names are phases from now on. Call with no region open.
  void set_phases(std::vector<Phase> phases);
  /// Seconds in each, in their order. No second counts twice.
  std::vector<double> phase_seconds();
  /// Zeroes seconds and calls; names stay. Call with no region open.
  void reset();

 protected:
  static void push_profiling_region(const char* name);
  static void pop_profiling_region();
  /// Accounts for the beginning of a region, or the end of the innermost one, at a time of any clock.
  void start_at(const char* name, std::int64_t ns);
  void stop_at(std::int64_t ns);
  bool is_phase(const char* name) { return entries_[find(name)].phase >= 0; }
  /// Waits until every start and stop so far is accounted for.
  virtual void settle() {}

 private:
  struct Entry {
    TimerRow row;
    int open = 0;    // how many times this name is on the stack
    int phase = -1;  // its number
  };
  struct Frame {
    std::uint32_t entry;
    int phase;            // its number; -1: none, or inside a closed one
    bool is_closed;       // no phase begins in it
    std::int64_t begin;   // ns
    std::int64_t inside;  // ns spent in regions within this one
    std::int64_t phases;  // ns spent in phases within this one
  };
  std::uint32_t find(const char* name);
  void rehash(std::size_t slots);
  int phase_of(const char* name) const;

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> slots_;  // open addressing on the pointer: entry + 1, 0 is free
  std::vector<Frame> stack_;
  std::vector<Phase> phases_;
  std::vector<double> phase_seconds_;
};

/// A region from here to the end of the scope.
class Region {
 public:
  Region(Timers& timers, const char* name) : timers_(timers) { timers_.start(name); }
  ~Region() { timers_.stop(); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  Timers& timers_;
};

}  // namespace nanotron
