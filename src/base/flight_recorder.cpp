#include "nanotron/base/flight_recorder.hpp"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>

namespace nanotron {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release = std::memory_order_release;

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

// Every operation changes it, and their order counts.
std::uint64_t add_to(std::uint64_t hash, std::uint64_t operation) {
  hash = (hash ^ operation) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

}  // namespace

FlightRecorder& flight_recorder() {
  static FlightRecorder recorder;
  return recorder;
}

FlightRecorder::FlightRecorder() { groups_.push_back({.name = "other calls of MPI", .ranks = {}}); }

std::int64_t FlightRecorder::now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// One thread writes: no read-modify-write is needed.
void FlightRecorder::moved() { events_.store(events_.load(relaxed) + 1, release); }

int FlightRecorder::group(const std::string& name, const std::vector<int>& ranks) {
  const std::lock_guard lock(groups_mutex_);
  RecordedGroup group{.name = name, .ranks = ranks};
  const auto found = std::ranges::find_if(groups_, [&](const RecordedGroup& g) { return g.is_same_as(group); });
  if (found != groups_.end()) return static_cast<int>(found - groups_.begin());
  if (groups_.size() == max_groups) return 0;
  groups_.push_back(std::move(group));
  return static_cast<int>(groups_.size() - 1);
}

void FlightRecorder::compare(int group, int me) {
  if (group <= 0) return;
  const RecordedGroup& compared = groups_[static_cast<std::size_t>(group)];
  const bool is_first = compared.ranks.front() == me;
  Alike& mine = alike_[static_cast<std::size_t>(group)];
  mine.all.store(hash_of(compared.name), relaxed);  // what two groups did must not cancel in the sum
  mine.weight.store(is_first ? compared.ranks.size() - 1 : ~std::uint64_t{0}, release);
}

Recorded FlightRecorder::begin(int group, const char* name, std::uint64_t bytes, Kind kind, std::uint64_t alike) {
  if (group < 0 || !is_on() || waits_sequence_.load(relaxed) != 0) return {};
  if (alike != 0) {
    Alike& mine = alike_[static_cast<std::size_t>(group)];
    mine.all.store(add_to(mine.all.load(relaxed), alike), release);
    mine.step.store(add_to(mine.step.load(relaxed), alike), relaxed);
  }
  auto& entered = entered_[static_cast<std::size_t>(group)];
  const std::uint64_t index = count_.load(relaxed), sequence = entered.load(relaxed) + 1;
  // A reader that sees one of these values sees the odd version too, and takes none of them.
  Entry& entry = ring_[index % ring_size];
  const std::uint64_t version = entry.version.load(relaxed);
  const std::int32_t depth = std::min<std::int32_t>(depth_.load(relaxed), max_depth);
  entry.version.store(version + 1, relaxed);
  entry.group.store(group, release);
  entry.sequence.store(sequence, release);
  entry.bytes.store(bytes, release);
  entry.name.store(name, release);
  entry.phase.store(depth > 0 ? regions_[static_cast<std::size_t>(depth - 1)].load(relaxed) : nullptr, release);
  entry.part.store(part_.load(relaxed), release);
  entry.layer.store(layer_.load(relaxed), release);
  entry.step.store(step_.load(relaxed), release);
  entry.begin.store(now(), release);
  entry.end.store(kind == Kind::queued ? OperationRecord::queued : 0, release);
  entry.version.store(version + 2, release);
  count_.store(index + 1, release);
  entered.store(sequence, release);
  const Recorded operation{group, sequence, index};
  if (kind == Kind::blocking) wait_for(operation, name);
  moved();
  return operation;
}

void FlightRecorder::wait_for(const Recorded& operation, const char* name) {
  if (operation.sequence == 0 || is_queued(operation)) return;
  waits_in_.store(holds(operation) ? ring_[operation.index % ring_size].name.load(relaxed) : name, release);
  waits_group_.store(operation.group, release);
  waits_since_.store(now(), release);
  waits_sequence_.store(operation.sequence, release);
  moved();
}

void FlightRecorder::stop_waiting() {
  waits_sequence_.store(0, release);
  moved();
}

void FlightRecorder::end(const Recorded& operation) {
  if (operation.sequence == 0 || is_queued(operation)) return;
  if (holds(operation)) ring_[operation.index % ring_size].end.store(now(), release);
  stop_waiting();
}

// Whether the operation's entry has not been overwritten. For the thread that writes.
bool FlightRecorder::holds(const Recorded& operation) const {
  return count_.load(relaxed) - operation.index <= ring_size;
}

bool FlightRecorder::is_queued(const Recorded& operation) const {
  return holds(operation) && ring_[operation.index % ring_size].end.load(relaxed) == OperationRecord::queued;
}

void FlightRecorder::enter(const char* region) {
  const std::int32_t depth = depth_.load(relaxed);
  if (depth < static_cast<std::int32_t>(max_depth)) regions_[static_cast<std::size_t>(depth)].store(region, release);
  depth_.store(depth + 1, release);
  moved();
}

void FlightRecorder::leave() {
  depth_.store(std::max(0, depth_.load(relaxed) - 1), release);
  moved();
}

void FlightRecorder::at_layer(std::int32_t layer) { layer_.store(layer, relaxed); }

void FlightRecorder::at_part(const char* part) { part_.store(part, relaxed); }

std::uint64_t FlightRecorder::take_proof() {
  std::uint64_t sum = 0;
  const bool is_new = step_.load(relaxed) != proven_step_;
  proven_step_ = step_.load(relaxed);
  for (Alike& mine : alike_) {
    if (mine.weight.load(relaxed) == 0) continue;
    if (is_new) mine.proven_before.store(mine.proven.load(relaxed), release);
    mine.proven.store(mine.step.load(relaxed), release);
    sum += mine.weight.load(relaxed) * mine.all.load(relaxed);
  }
  return sum;
}

void FlightRecorder::wait_for_verdict(Found found) {
  moved();
  differs_.store(found == Found::by_proof, release);
  waits_for_verdict_.store(true, release);
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}

void FlightRecorder::begin_step(std::int64_t step) {
  for (Alike& mine : alike_) mine.step.store(0, relaxed);
  stopped_.store(0, release);
  step_.store(step, release);
  moved();
}

void FlightRecorder::step_done(std::int64_t ns) {
  const std::int64_t done = steps_done_.load(relaxed), ran = ns - stopped_.load(acquire);
  if (done > 0 && ran > longest_step_.load(relaxed)) longest_step_.store(ran, release);
  steps_done_.store(done + 1, release);
  moved();
}

void FlightRecorder::was_stopped(std::int64_t ns) { stopped_.fetch_add(ns); }

bool FlightRecorder::read(const Entry& entry, OperationRecord& record) const {
  const std::uint64_t version = entry.version.load(acquire);
  record = {.group = entry.group.load(acquire),
            .sequence = entry.sequence.load(acquire),
            .name = entry.name.load(acquire),
            .bytes = entry.bytes.load(acquire),
            .place = {.step = entry.step.load(acquire),
                      .phase = entry.phase.load(acquire),
                      .part = entry.part.load(acquire),
                      .layer = entry.layer.load(acquire)},
            .begin = entry.begin.load(acquire),
            .end = entry.end.load(acquire)};
  return version != 0 && version % 2 == 0 && entry.version.load(relaxed) == version;
}

FlightSnapshot FlightRecorder::snapshot() const {
  FlightSnapshot s;
  {
    const std::lock_guard lock(groups_mutex_);
    s.groups = groups_;
  }
  for (std::size_t g = 0; g < s.groups.size(); ++g) {
    s.groups[g].entered = entered_[g].load(acquire);
    s.groups[g].is_compared = alike_[g].weight.load(acquire) != 0;
    s.groups[g].alike = alike_[g].all.load(acquire);
    s.groups[g].is_as_before = alike_[g].proven.load(acquire) == alike_[g].proven_before.load(acquire);
  }
  s.differs = differs_.load(acquire);
  const std::int32_t depth = std::clamp<std::int32_t>(depth_.load(acquire), 0, max_depth);
  for (std::size_t i = 0; i < static_cast<std::size_t>(depth); ++i) s.regions.push_back(regions_[i].load(acquire));
  s.place = {.step = step_.load(acquire),
             .phase = s.regions.empty() ? nullptr : s.regions.back(),
             .part = part_.load(acquire),
             .layer = layer_.load(acquire)};
  s.longest_step = longest_step_.load(acquire);
  s.waits_for = {.group = 0, .sequence = waits_sequence_.load(acquire), .index = 0};  // first: written last
  s.waits_for.group = waits_group_.load(acquire);
  s.waits_since = waits_since_.load(acquire);
  s.waits_in = waits_in_.load(acquire);
  const std::uint64_t count = count_.load(acquire);
  for (std::uint64_t i = count > ring_size ? count - ring_size : 0; i < count; ++i) {
    OperationRecord record;
    if (read(ring_[i % ring_size], record)) s.records.push_back(record);
  }
  return s;
}

}  // namespace nanotron
