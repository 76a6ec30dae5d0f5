#include "pieces.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

namespace nanotron::io {

bool is_empty(const StatePart& part) {
  return std::any_of(part.extent.begin(), part.extent.end(), [](index_t e) { return e <= 0; });
}

std::vector<index_t> extent_of(const Piece& piece) {
  std::vector<index_t> extent = piece.part->extent;
  extent[0] = piece.outer.size();
  if (extent.size() == 3) extent[1] = piece.inner.size();
  return extent;
}

index_t elements_of(const Piece& piece) {
  const std::vector<index_t> extent = extent_of(piece);
  return std::accumulate(extent.begin(), extent.end(), index_t{1}, std::multiplies<>());
}

std::byte* memory_of(const Piece& piece, ScalarType type) {
  index_t skipped = piece.outer.begin * piece.part->stride[0];
  if (piece.part->stride.size() == 3) skipped += piece.inner.begin * piece.part->stride[1];
  return static_cast<std::byte*>(piece.part->data) + skipped * static_cast<index_t>(size_of(type));
}

StatePart packed_at(std::byte* memory, const StatePart& part) {
  StatePart packed = part;
  packed.data = memory;
  packed.stride.assign(part.extent.size(), 1);
  for (std::size_t i = part.extent.size() - 1; i > 0; --i) packed.stride[i - 1] = packed.stride[i] * packed.extent[i];
  return packed;
}

std::int64_t bytes_of(const StatePart& part, ScalarType type) {
  if (is_empty(part)) return 0;
  return std::accumulate(part.extent.begin(), part.extent.end(), index_t{1}, std::multiplies<>()) *
         static_cast<std::int64_t>(size_of(type));
}

MemoryRows::MemoryRows(const StatePart& part, ScalarType type) : begin(static_cast<std::byte*>(part.data)) {
  const std::vector<index_t>& extent = part.extent;
  const std::size_t n = extent.size(), element = size_of(type);
  const auto bytes = [&](index_t elements) { return static_cast<std::size_t>(elements) * element; };
  const bool is_vector = n == 1 && part.stride[0] == 1;
  const index_t columns = is_vector ? extent[0] : n == 1 ? 1 : extent[n - 1];
  layers = static_cast<std::size_t>(n == 3 ? extent[0] : 1);
  rows = static_cast<std::size_t>(n == 3 ? extent[1] : is_vector ? 1 : extent[0]);
  width = bytes(columns);
  pitch = bytes(std::max(is_vector ? columns : part.stride[n == 3 ? 1 : 0], columns));
  layer_pitch = bytes(part.stride[0]);
}

StatePart part_of(const Piece& piece, ScalarType type) {
  StatePart part = *piece.part;
  part.extent = extent_of(piece);
  part.data = memory_of(piece, type);
  part.offset[0] += piece.outer.begin;
  if (part.extent.size() == 3) part.offset[1] += piece.inner.begin;
  return part;
}

std::vector<std::vector<Piece>> transfers_of(const StateTensor& tensor, ScalarType type, std::int64_t piece_bytes) {
  std::vector<std::vector<Piece>> transfers;
  const index_t most = piece_bytes / static_cast<index_t>(size_of(type));
  index_t filled = most;
  const auto add = [&](const Piece& piece) {
    const index_t elements = elements_of(piece);
    if (transfers.empty() || filled + elements > most) {
      transfers.emplace_back();
      filled = 0;
    }
    transfers.back().push_back(piece);
    filled += elements;
  };
  for (const StatePart& t : tensor.parts) {
    if (is_empty(t)) continue;
    const index_t rows = t.extent.size() == 3 ? t.extent[1] : 1;
    const auto row_elements = std::accumulate(t.extent.begin() + (t.extent.size() == 3 ? 2 : 1), t.extent.end(),
                                              index_t{1}, std::multiplies<>());
    const index_t fitting = std::max<index_t>(1, most / row_elements);
    const index_t outer_step = std::max<index_t>(1, fitting / rows), inner_step = std::min(fitting, rows);
    for (index_t i = 0; i < t.extent[0]; i += outer_step)
      for (index_t j = 0; j < rows; j += inner_step)
        add({&t, {i, std::min(i + outer_step, t.extent[0])}, {j, std::min(j + inner_step, rows)}});
  }
  return transfers;
}

}  // namespace nanotron::io
