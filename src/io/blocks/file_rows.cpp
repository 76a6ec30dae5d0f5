#include "file_rows.hpp"

#include <algorithm>

#include "io/blocks/pieces.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::io {
namespace {

index_t ceiling(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Rows [first, last) of `n` that begin `pitch` bytes after each other at `begin`, each of `bytes`, and meet [from, to).
Range rows_within(std::int64_t begin, std::int64_t pitch, std::int64_t bytes, index_t n, std::int64_t from,
                  std::int64_t to) {
  if (n == 1 || pitch == 0) return {0, begin < to && begin + bytes > from ? n : 0};
  const index_t first = from < begin + bytes ? 0 : (from - begin - bytes) / pitch + 1;
  const index_t last = to <= begin ? 0 : ceiling(to - begin, pitch);
  return {std::min(first, n), std::clamp(last, std::min(first, n), n)};
}

// `part` with `range` of its dimension d only.
StatePart narrowed(const StatePart& part, std::size_t d, const Range& range, ScalarType type) {
  StatePart narrow = part;
  narrow.offset[d] += range.begin;
  narrow.extent[d] = range.size();
  narrow.data = static_cast<std::byte*>(part.data) + range.begin * part.stride[d] * static_cast<index_t>(size_of(type));
  return narrow;
}

}  // namespace

FileRows::FileRows(const PlacedTensor& placed, const StatePart& part) {
  const std::vector<index_t>& shape = placed.tensor->global_shape;
  const std::size_t n = shape.size();
  const auto element = static_cast<std::int64_t>(size_of(placed.type));
  const index_t columns = shape[n - 1], rows = n == 3 ? shape[1] : 1;
  inner_pitch = columns * element;
  outer_pitch = n == 3 ? rows * inner_pitch : 0;
  outer = n == 3 ? part.extent[0] : 1;
  inner = n == 3 ? part.extent[1] : n == 2 ? part.extent[0] : 1;
  bytes = part.extent[n - 1] * element;
  begin = placed.begin + part.offset[n - 1] * element;
  if (n >= 2) begin += part.offset[n - 2] * inner_pitch;
  if (n == 3) begin += part.offset[0] * outer_pitch;
}

std::vector<StatePart> parts_within(const PlacedTensor& placed, std::int64_t from, std::int64_t to) {
  std::vector<StatePart> found;
  const std::size_t n = placed.tensor->global_shape.size();
  const auto element = static_cast<std::int64_t>(size_of(placed.type));
  for (const StatePart& part : placed.tensor->parts) {
    if (is_empty(part)) continue;
    NANOTRON_REQUIRE(part.stride[n - 1] == 1, "{}: columns with gaps", placed.tensor->name);
    const FileRows rows(placed, part);
    if (n == 1) {
      const Range elements = rows_within(rows.begin, element, element, part.extent[0], from, to);
      if (elements.size() > 0) found.push_back(narrowed(part, 0, elements, placed.type));
      continue;
    }
    const std::int64_t layer_bytes = (rows.inner - 1) * rows.inner_pitch + rows.bytes;
    const Range layers = rows_within(rows.begin, rows.outer_pitch, layer_bytes, rows.outer, from, to);
    for (index_t i = layers.begin; i < layers.end; ++i) {
      const Range inner = rows_within(rows.position(i, 0), rows.inner_pitch, rows.bytes, rows.inner, from, to);
      if (inner.size() <= 0) continue;
      const StatePart layer = n == 3 ? narrowed(part, 0, {i, i + 1}, placed.type) : part;
      found.push_back(narrowed(layer, n - 2, inner, placed.type));
    }
  }
  return found;
}

}  // namespace nanotron::io
