#include "length_buckets.hpp"

#include <algorithm>
#include <utility>

namespace nanotron::data {

int length_class(index_t length, index_t capacity) {
  int level = 0;
  while (level + 1 < length_classes && (capacity >> level) % 2 == 0 && length <= capacity >> (level + 1)) ++level;
  return level;
}

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
  for (const int level = length_class(length, capacity_); level_ < level;) {
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
