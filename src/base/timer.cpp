#include "nanotron/base/timer.hpp"

#include <fmt/format.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>

#include "nanotron/base/error.hpp"
#include "nanotron/base/flight_recorder.hpp"

#ifdef NANOTRON_WITH_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace nanotron {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::size_t hash_of(const char* name) { return (reinterpret_cast<std::uintptr_t>(name) * 0x9E3779B97F4A7C15ull) >> 32; }

}  // namespace

double wall_seconds() { return static_cast<double>(now_ns()) * 1e-9; }

Timers::Timers() : slots_(256, 0) {
  entries_.reserve(128);
  stack_.reserve(64);
}

std::uint32_t Timers::find(const char* name) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash_of(name) & mask;
  for (; slots_[at] != 0; at = (at + 1) & mask) {
    if (entries_[slots_[at] - 1].row.name == name) return slots_[at] - 1;
  }
  entries_.push_back({.row = {.name = name}, .phase = phase_of(name)});
  slots_[at] = static_cast<std::uint32_t>(entries_.size());
  if (2 * entries_.size() > slots_.size()) rehash(2 * slots_.size());
  return static_cast<std::uint32_t>(entries_.size() - 1);
}

int Timers::phase_of(const char* name) const {
  const auto same = [&](const Phase& phase) { return std::strcmp(phase.name, name) == 0; };
  const auto found = std::find_if(phases_.begin(), phases_.end(), same);
  return found == phases_.end() ? -1 : static_cast<int>(found - phases_.begin());
}

void Timers::set_phases(std::vector<Phase> phases) {
  settle();
  NANOTRON_REQUIRE(stack_.empty(), "phases are set inside a region");
  phases_ = std::move(phases);
  phase_seconds_.assign(phases_.size(), 0.0);
  for (Entry& entry : entries_) entry.phase = phase_of(entry.row.name);
}

std::vector<double> Timers::phase_seconds() {
  settle();
  return phase_seconds_;
}

void Timers::rehash(std::size_t slots) {
  slots_.assign(slots, 0);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::size_t at = hash_of(entries_[i].row.name) & (slots - 1);
    while (slots_[at] != 0) at = (at + 1) & (slots - 1);
    slots_[at] = static_cast<std::uint32_t>(i + 1);
  }
}

// pushRegion takes a std::string: it is constructed only if a Kokkos tool is loaded.
void Timers::push_profiling_region(const char* name) {
  flight_recorder().enter(name);
  if (Kokkos::Profiling::profileLibraryLoaded()) Kokkos::Profiling::pushRegion(name);
#ifdef NANOTRON_WITH_CUDA
  nvtxRangePushA(name);
#endif
}

void Timers::pop_profiling_region() {
  flight_recorder().leave();
#ifdef NANOTRON_WITH_CUDA
  nvtxRangePop();
#endif
  if (Kokkos::Profiling::profileLibraryLoaded()) Kokkos::Profiling::popRegion();
}

void Timers::start(const char* name) {
  push_profiling_region(name);
  start_at(name, now_ns());
}

void Timers::stop() {
  stop_at(now_ns());
  pop_profiling_region();
}

void Timers::start_at(const char* name, std::int64_t ns) {
  const std::uint32_t entry = find(name);
  ++entries_[entry].open;
  const bool is_inside = !stack_.empty() && stack_.back().is_closed;
  const int phase = is_inside ? -1 : entries_[entry].phase;
  const bool closes = phase >= 0 && phases_[static_cast<std::size_t>(phase)].kind == Phase::Kind::closed;
  stack_.push_back(
      {.entry = entry, .phase = phase, .is_closed = is_inside || closes, .begin = ns, .inside = 0, .phases = 0});
}

void Timers::stop_at(std::int64_t end) {
  if (stack_.empty()) return;
  const Frame frame = stack_.back();
  stack_.pop_back();
  const std::int64_t spent = end - frame.begin;
  Entry& entry = entries_[frame.entry];
  ++entry.row.calls;
  entry.row.exclusive += static_cast<double>(spent - frame.inside) * 1e-9;
  if (--entry.open == 0) entry.row.inclusive += static_cast<double>(spent) * 1e-9;
  const std::int64_t in_phases = frame.phase >= 0 ? spent : frame.phases;
  if (frame.phase >= 0) {
    phase_seconds_[static_cast<std::size_t>(frame.phase)] += static_cast<double>(spent - frame.phases) * 1e-9;
  }
  if (stack_.empty()) return;
  stack_.back().inside += spent;
  stack_.back().phases += in_phases;
}

std::vector<TimerRow> Timers::rows() {
  settle();
  std::vector<TimerRow> merged;
  for (const Entry& entry : entries_) {
    const auto same = std::find_if(merged.begin(), merged.end(),
                                   [&](const TimerRow& row) { return std::strcmp(row.name, entry.row.name) == 0; });
    if (same == merged.end()) {
      merged.push_back(entry.row);
    } else {
      same->calls += entry.row.calls;
      same->inclusive += entry.row.inclusive;
      same->exclusive += entry.row.exclusive;
    }
  }
  return merged;
}

std::string Timers::table(double total) {
  std::vector<TimerRow> sorted = rows();
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const TimerRow& a, const TimerRow& b) { return a.exclusive > b.exclusive; });
  std::string text =
      fmt::format("{:<32} {:>10} {:>12} {:>12} {:>7}\n", "region", "calls", "inclusive s", "exclusive s", "share");
  for (const TimerRow& row : sorted) {
    if (row.calls == 0) continue;
    text += fmt::format("{:<32} {:>10} {:>12.4f} {:>12.4f} {:>6.1f}%\n", row.name, row.calls, row.inclusive,
                        row.exclusive, total > 0 ? 100 * row.exclusive / total : 0.0);
  }
  return text;
}

void Timers::reset() {
  settle();
  NANOTRON_REQUIRE(stack_.empty(), "timers reset inside a region");
  for (Entry& entry : entries_) entry.row = {.name = entry.row.name};
  std::ranges::fill(phase_seconds_, 0.0);
}

}  // namespace nanotron
