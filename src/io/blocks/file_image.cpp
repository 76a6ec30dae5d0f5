#include "nanotron/io/blocks/file_image.hpp"

#include <algorithm>
#include <cstring>

namespace nanotron::io {

void FileImage::read(void* target, std::int64_t bytes, std::int64_t position) {
  auto* const to = static_cast<std::byte*>(target);
  std::fill_n(to, bytes, std::byte{0});
  auto extent = extents_.upper_bound(position);
  if (extent != extents_.begin()) --extent;
  for (; extent != extents_.end() && extent->first < position + bytes; ++extent) {
    const auto& [begin, held] = *extent;
    const std::int64_t from = std::max(begin, position);
    const std::int64_t to_end = std::min(begin + static_cast<std::int64_t>(held.size()), position + bytes);
    if (from < to_end) std::memcpy(to + (from - position), held.data() + (from - begin), std::size_t(to_end - from));
  }
}

// The extent that begins before or at `position` and reaches it grows, and takes over those that it then reaches.
void FileImage::write(const void* source, std::int64_t bytes, std::int64_t position) {
  if (bytes == 0) return;
  const auto end_of = [](const auto& extent) { return extent.first + static_cast<std::int64_t>(extent.second.size()); };
  const std::int64_t end = position + bytes;
  auto extent = extents_.upper_bound(position);
  if (extent != extents_.begin() && end_of(*std::prev(extent)) >= position) {
    --extent;
  } else {
    extent = extents_.emplace_hint(extent, position, std::vector<std::byte>());
  }
  std::vector<std::byte>& held = extent->second;
  const std::int64_t begin = extent->first;
  if (end > end_of(*extent)) held.resize(static_cast<std::size_t>(end - begin));
  for (auto next = std::next(extent); next != extents_.end() && next->first <= end_of(*extent);) {
    if (end_of(*next) > end_of(*extent)) {
      const std::int64_t known = end_of(*extent) - next->first;
      held.insert(held.end(), next->second.begin() + known, next->second.end());
    }
    // What it has before our end is overwritten below.
    next = extents_.erase(next);
  }
  std::memcpy(held.data() + (position - begin), source, static_cast<std::size_t>(bytes));
  bytes_ = std::max(bytes_, end);
}

}  // namespace nanotron::io
