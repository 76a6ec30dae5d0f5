#include "nanotron/tensor/work.hpp"

#include <algorithm>
#include <bit>

#include "nanotron/base/error.hpp"

namespace nanotron {
namespace {

std::uint64_t hash_of(std::string_view kernel, const Work& w) {
  std::uint64_t h = std::hash<std::string_view>{}(kernel);
  for (const std::uint64_t part : {std::bit_cast<std::uint64_t>(w.read), std::bit_cast<std::uint64_t>(w.written),
                                   std::bit_cast<std::uint64_t>(w.from_host), std::bit_cast<std::uint64_t>(w.flops),
                                   static_cast<std::uint64_t>(w.gemm.m), static_cast<std::uint64_t>(w.gemm.n)}) {
    h = (h ^ part) * 0x9e3779b97f4a7c15U;
    h ^= h >> 29U;
  }
  return h;
}

}  // namespace

std::size_t WorkList::row_of(std::string_view kernel, const Work& work) {
  const std::uint64_t hash = hash_of(kernel, work);
  const auto [begin, end] = row_of_hash_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    const WorkRow& row = rows_[at->second];
    if (row.kernel == kernel && row.work == work) return at->second;
  }
  row_of_hash_.emplace(hash, static_cast<std::uint32_t>(rows_.size()));
  rows_.push_back({.kernel = kernel, .work = work});
  return rows_.size() - 1;
}

void WorkList::open(std::string_view kernel, const Work& work) {
  const std::size_t row = row_of(kernel, work);
  ++rows_[row].calls;
  open_.push_back(row);
  add_event(StepEvent::Kind::kernel, row);
}

void WorkList::close() { open_.pop_back(); }

void WorkList::add_launch() {
  NANOTRON_REQUIRE(!open_.empty(), "a launch outside of a KernelRegion");
  ++rows_[open_.back()].launches;
}

std::uint64_t WorkList::started(const comm::PlannedOperation& operation) {
  auto found = std::ranges::find(operations_, operation);
  if (found == operations_.end()) found = operations_.insert(found, operation);
  add_event(StepEvent::Kind::start, static_cast<std::uint64_t>(found - operations_.begin()));
  return ++starts_;
}

}  // namespace nanotron
