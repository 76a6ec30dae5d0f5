#include "nanotron/trainer/checkpoint/state_tensors.hpp"

#include <algorithm>
#include <iterator>
#include <optional>

namespace nanotron::trainer {
namespace {

// Along the sharded dimension, in indices of the logical tensor.
Range range_of(const nn::ParameterSpec& spec, const Part& part) {
  if (spec.local_layers() == 0) return {0, 0};
  return part.of == Part::Of::held ? spec.local : spec.owned;
}

// Layers and rows of the local matrix, by index.
struct Share {
  Range layers, rows;
};

// What this one of the replicas takes of all layers: pieces that lie side by side in a file, so that a block of the
// file is one rank's; nothing where a share would become small. Replicas take turns. Several shares are of a layer
// each.
std::vector<Share> shares_of(index_t layers, const Range& rows, index_t row_bytes, const Part& part, index_t turn) {
  const index_t replicas = part.replicas, layer_bytes = rows.size() * row_bytes;
  const index_t pieces = std::clamp<index_t>(layer_bytes / shared_bytes, 1, replicas);  // of a layer
  const index_t sharers =
      std::min({replicas, layers * pieces, std::max<index_t>(1, layers * layer_bytes / shared_bytes)});
  const index_t mine = (part.replica + turn) % replicas;
  if (mine >= sharers) return {};
  const index_t begin = layers * pieces * mine / sharers, end = layers * pieces * (mine + 1) / sharers;
  if (begin % pieces == 0 && end % pieces == 0) return {{{begin / pieces, end / pieces}, rows}};
  std::vector<Share> shares;
  for (index_t at = begin; at < end;) {
    const index_t layer = at / pieces, first = at % pieces, last = std::min(pieces, first + end - at);
    const Range cut{rows.begin + rows.size() * first / pieces, rows.begin + rows.size() * last / pieces};
    shares.push_back({{layer, layer + 1}, cut});
    at += last - first;
  }
  return shares;
}

// Of tensor number `tensor`. Small experts that lie side by side in a file are written by one rank.
index_t turn_of(const nn::ParameterSpec& spec, index_t element_bytes, index_t tensor) {
  return spec.stack.empty() ? tensor : spec.number * spec.logical_size() * element_bytes / shared_bytes;
}

std::vector<index_t> shape_of(const nn::ParameterSpec& spec) {
  std::vector<index_t> shape;
  if (spec.is_stacked) shape.push_back(spec.layers);
  shape.push_back(spec.rows);
  if (!spec.is_1d) shape.push_back(spec.columns);
  return shape;
}

std::optional<io::Slice> slice_of(const nn::ParameterSpec& spec) {
  if (spec.stack.empty()) return std::nullopt;
  return io::Slice{spec.stack, spec.number, spec.numbers};
}

// A block of the local matrix in each of `layers`. Layers are rows of the stack; rows and columns are local indices.
struct Block {
  Range layers, rows, columns;
};

template <class S>
io::StatePart state_part(const nn::ParameterSpec& spec, const Block& block, S* data) {
  const bool by_columns = spec.partition == nn::Partition::row_parallel;
  io::StatePart part;
  part.data = data;
  const auto add = [&](const Range& range, index_t shift, index_t stride) {
    part.offset.push_back(range.begin + shift);
    part.extent.push_back(range.size());
    part.stride.push_back(stride);
  };
  // The stride of a single row or layer is never used: this value keeps the part a packed rectangle.
  const index_t row_stride = block.rows.size() > 1 || spec.is_1d ? spec.local_columns() : block.columns.size();
  const index_t layer_stride =
      block.layers.size() > 1 ? spec.offset_of(1) - spec.offset_of(0) : block.rows.size() * row_stride;
  if (spec.is_stacked) add(block.layers, 0, layer_stride);
  add(block.rows, by_columns ? 0 : spec.local.begin, row_stride);
  if (!spec.is_1d) add(block.columns, by_columns ? spec.local.begin : 0, 1);
  return part;
}

// Splits elements `range` of the row-major local matrix into the end of a row, whole rows and the beginning of a row.
std::vector<Block> blocks_of(const nn::ParameterSpec& spec, index_t layer, const Range& range) {
  const index_t columns = spec.local_columns();
  const index_t number = spec.stack_row(layer);
  const Range one{number, number + 1};
  std::vector<Block> blocks;
  for (index_t begin = range.begin, end = 0; begin < range.end; begin = end) {
    const index_t row = begin / columns, column = begin % columns;
    const bool whole = column == 0 && range.end - begin >= columns;
    const index_t rows = whole ? (range.end - begin) / columns : 1;
    end = whole ? begin + rows * columns : std::min(range.end, (row + 1) * columns);
    blocks.push_back({one, {row, row + rows}, {column, whole ? columns : column + end - begin}});
  }
  return blocks;
}

// Whether these layers, and the first two here, are as far apart in the buffer from one to the next.
bool are_evenly_spaced(const nn::ParameterSpec& spec, const Range& layers) {
  for (index_t l = layers.begin; l + 1 < layers.end; ++l) {
    if (spec.offset_of(l + 1) - spec.offset_of(l) != spec.offset_of(1) - spec.offset_of(0)) return false;
  }
  return true;
}

// The parts of a share that `layout` holds. It is one part if `layout` holds all of it in one piece and the layers are
// consecutive and evenly spaced.
template <class S>
std::vector<io::StatePart> state_parts(const nn::ParameterSpec& spec, const nn::BufferLayout& layout, S* data,
                                       const Share& share) {
  const auto& [layers, rows] = share;
  const index_t columns = spec.local_columns();
  const Range local{rows.begin * columns, rows.end * columns};
  const auto flat = [&](index_t layer) {
    return Range{spec.offset_of(layer) + local.begin, spec.offset_of(layer) + local.end};
  };
  const auto number = [&](index_t layer) { return spec.stack_row(layer); };
  const Range all{flat(layers.begin).begin, flat(layers.end - 1).end};
  const Range numbers{number(layers.begin), number(layers.end - 1) + 1};
  const std::vector<nn::BufferLayout::Part> held = layout.within(all);
  if (numbers.size() == layers.size() && held.size() == 1 && held.front().range == all &&
      are_evenly_spaced(spec, layers)) {
    return {state_part(spec, {numbers, rows, {0, columns}}, data + held.front().at)};
  }
  std::vector<io::StatePart> parts;
  for (index_t layer = layers.begin; layer < layers.end; ++layer) {
    for (const nn::BufferLayout::Part& p : layout.within(flat(layer))) {
      const index_t first = p.range.begin - spec.offset_of(layer);
      for (const Block& block : blocks_of(spec, layer, {first, first + p.range.size()})) {
        const index_t at = block.rows.begin * columns + block.columns.begin;
        parts.push_back(state_part(spec, block, data + p.at + (at - first)));
      }
    }
  }
  return parts;
}

}  // namespace

template <class S>
std::vector<io::StateTensor> moment_tensors(const std::vector<nn::ParameterSpec>& specs, const nn::BufferLayout& layout,
                                            S* data, const Parts& part) {
  std::vector<io::StateTensor> tensors;
  for (const nn::ParameterSpec& spec : specs) {
    tensors.push_back({.name = spec.name,
                       .global_shape = shape_of(spec),
                       .parts = {},
                       .slice = slice_of(spec),
                       .layers = spec.stack_layers});
    const Range range = range_of(spec, part[spec.replicas]);
    if (range.size() == 0 || spec.local_layers() == 0) continue;
    // Row-parallel columns are never replicated: a rank owns all rows of its columns.
    const Range owned = spec.partition == nn::Partition::row_parallel
                            ? Range{0, spec.rows}
                            : Range{range.begin - spec.local.begin, range.end - spec.local.begin};
    const auto row_bytes = spec.local_columns() * static_cast<index_t>(sizeof(S));
    for (const Share& share : shares_of(spec.local_layers(), owned, row_bytes, part[spec.replicas],
                                        turn_of(spec, static_cast<index_t>(sizeof(S)), std::ssize(tensors)))) {
      std::ranges::move(state_parts(spec, layout, data, share), std::back_inserter(tensors.back().parts));
    }
  }
  return tensors;
}

template <class S>
std::vector<io::StateTensor> state_tensors(const model::ParameterTable& table, const nn::BufferLayout& layout, S* data,
                                           const Parts& part) {
  return moment_tensors<S>(table.specs, layout, data, part);
}

#define NANOTRON_INSTANTIATE(S)                                                                                        \
  template std::vector<io::StateTensor> state_tensors(const model::ParameterTable&, const nn::BufferLayout&, S*,       \
                                                      const Parts&);                                                   \
  template std::vector<io::StateTensor> moment_tensors(const std::vector<nn::ParameterSpec>&, const nn::BufferLayout&, \
                                                       S*, const Parts&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
