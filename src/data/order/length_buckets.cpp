#include "length_buckets.hpp"

#include <algorithm>
#include <utility>

namespace nanotron::data {
namespace {

constexpr int max_level = 6;

}  // namespace

void LengthBuckets::add(std::size_t bin, index_t begin, index_t end) {
  if (end > begin) free_[end - begin].push_back({bin, begin});
}

void LengthBuckets::cut_at_blocks() {
  const auto stretches = std::exchange(free_, {});
  for (const auto& [length, places] : stretches) {
    for (const Place& p : places) {
      const index_t size = block(level_), end = p.position + length;
      for (index_t at = p.position; at < end;) {
        const index_t next = std::min((at / size + 1) * size, end);
        add(p.bin, at, next);
        at = next;
      }
    }
  }
}

LengthBuckets::Place LengthBuckets::place(index_t length) {
  while (level_ < max_level && block(level_) % 2 == 0 && length <= block(level_ + 1)) {
    ++level_;
    cut_at_blocks();
  }
  auto best = free_.lower_bound(length);
  if (best == free_.end()) {
    for (index_t end = capacity_; end > 0; end -= block(level_))
      add(bins_, end - block(level_), end);  // first one last
    ++bins_;
    best = free_.lower_bound(length);
  }
  const Place place = best->second.back();
  const index_t end = place.position + best->first;
  best->second.pop_back();
  if (best->second.empty()) free_.erase(best);
  add(place.bin, place.position + length, end);
  return place;
}

}  // namespace nanotron::data
