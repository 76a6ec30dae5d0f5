#include "nanotron/trainer/faults/step_trace.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/reduction/content_hash.hpp"

namespace nanotron::trainer {
namespace {

using EventKind = TracedEvent::Kind;
using Operation = std::pair<comm::Line, std::uint64_t>;  // a line and a sequence in it

// The first operation of each line to which this rank gave something else, and the event of the first of all.
struct Differences {
  std::vector<Operation> first_of_line;
  std::size_t first_event;
};

Differences differences(const ComputedStep& first, const ComputedStep& second) {
  std::map<Operation, std::uint64_t> later;
  for (const TracedEvent& e : second.events) {
    if (e.kind == EventKind::gives) later.emplace(Operation(e.line, e.sequence), e.hash);
  }
  Differences found{{}, first.events.size()};
  std::set<comm::Line> lines;
  for (std::size_t i = 0; i < first.events.size(); ++i) {
    const TracedEvent& e = first.events[i];
    if (e.kind != EventKind::gives) continue;
    const auto same = later.find({e.line, e.sequence});
    if (same == later.end() || same->second == e.hash) continue;
    found.first_event = std::min(found.first_event, i);
    if (lines.insert(e.line).second) found.first_of_line.emplace_back(e.line, e.sequence);
  }
  return found;
}

template <class Value>
std::vector<Value> gathered(const std::vector<Value>& mine, MPI_Comm world) {
  int size = 0;
  NANOTRON_CHECK_MPI(MPI_Comm_size(world, &size));
  std::vector<int> counts(static_cast<std::size_t>(size)), begins(counts.size(), 0);
  const auto bytes = static_cast<int>(mine.size() * sizeof(Value));
  NANOTRON_CHECK_MPI(MPI_Allgather(&bytes, 1, MPI_INT, counts.data(), 1, MPI_INT, world));
  for (std::size_t r = 1; r < counts.size(); ++r) begins[r] = begins[r - 1] + counts[r - 1];
  std::vector<Value> all(static_cast<std::size_t>(begins.back() + counts.back()) / sizeof(Value));
  NANOTRON_CHECK_MPI(
      MPI_Allgatherv(mine.data(), bytes, MPI_BYTE, all.data(), counts.data(), begins.data(), MPI_BYTE, world));
  return all;
}

struct Given {
  comm::Line line;
  std::uint64_t sequence;
  std::int64_t rank;
};

}  // namespace

StepDifference compare_steps(const ComputedStep& first, const ComputedStep& second, MPI_Comm world) {
  int rank = 0;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  const Differences mine = differences(first, second);
  std::vector<Given> given;
  for (const auto& [line, sequence] : mine.first_of_line) given.push_back({line, sequence, rank});
  std::set<Operation> of_others;
  for (const Given& g : gathered(given, world)) {
    if (g.rank != rank) of_others.emplace(g.line, g.sequence);
  }
  const bool differs = !given.empty() || first.results != second.results;
  const auto end = first.events.begin() + static_cast<std::ptrdiff_t>(mine.first_event);
  const bool was_reached = std::any_of(first.events.begin(), end, [&](const TracedEvent& e) {
    return e.kind == EventKind::arrives && of_others.contains({e.line, e.sequence});
  });
  const bool is_at_fault = differs && !was_reached;
  std::array<std::uint8_t, 2> anywhere{differs, first.is_cut || second.is_cut};
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, anywhere.data(), 2, MPI_UINT8_T, MPI_MAX, world));
  StepDifference found{anywhere[0] != 0, gathered(is_at_fault ? std::vector{rank} : std::vector<int>(), world)};
  // What reached a rank may be in the part that is missing.
  if (anywhere[1] != 0 && found.ranks.size() > 1) found.ranks.clear();
  return found;
}

StepTrace::StepTrace(Device& device) : device_(device), hashes_("step trace", capacity) {
  events_.reserve(2 * capacity);
  operation_of_.reserve(2 * capacity);
  started_.reserve(capacity);
}

void StepTrace::begin() {
  first_ticket_ += started_.size();
  events_.clear();
  operation_of_.clear();
  started_.clear();
  for (auto& [line, sequence] : sequences_) sequence = 0;
  is_on_ = true;
  is_cut_ = false;
}

std::uint64_t StepTrace::gives(comm::Line line, const void* data, std::size_t bytes) {
  const std::size_t operation = started_.size();
  if (!is_on_) return 0;
  is_cut_ = is_cut_ || operation == capacity;
  if (is_cut_) return 0;
  kernels::content_hash(device_, data, bytes, Vector<std::uint64_t>(hashes_.data() + operation, 1));
  started_.push_back(events_.size());
  operation_of_.push_back(operation);
  events_.push_back({line, ++sequences_[line], EventKind::gives, 0});
  return first_ticket_ + operation;
}

void StepTrace::arrived(std::uint64_t ticket) {
  if (!is_on_ || ticket < first_ticket_) return;
  const std::size_t operation = ticket - first_ticket_;
  const TracedEvent& start = events_[started_[operation]];
  operation_of_.push_back(operation);
  events_.push_back({start.line, start.sequence, EventKind::arrives, 0});
}

std::vector<TracedEvent> StepTrace::events() const {
  const auto hashes = Kokkos::create_mirror_view(hashes_);
  Kokkos::deep_copy(device_.exec(), hashes, hashes_);
  device_.fence();
  std::vector<TracedEvent> all = events_;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].kind == EventKind::gives) all[i].hash = hashes(operation_of_[i]);
  }
  return all;
}

}  // namespace nanotron::trainer
