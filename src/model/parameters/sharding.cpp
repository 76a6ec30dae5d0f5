#include "nanotron/model/parameters/sharding.hpp"

namespace nanotron::model {
namespace {

using nn::BufferLayout;

// Sections in a layout: all of them, or those that training changes.
enum class Sections { all, trained };

bool is_in(const Section& section, Sections which) { return which == Sections::all || !section.is_frozen; }

// In the order of the flat space. with_1d(section): whether the 1-D parameters of a section are among them.
template <class F>
std::vector<Range> shards_of(const ParameterTable& table, const Sharding& sharding, Sections which, const F& with_1d) {
  std::vector<Range> shards;
  for (const Section& section : table.sections) {
    if (!is_in(section, which)) continue;
    if (with_1d(section)) shards.push_back(section.params_1d);
    for (index_t u = section.units.begin; u < section.units.end; ++u) {
      shards.push_back(shard_of(table.unit(u), sharding));
    }
  }
  return shards;
}

// The units of trained sections as in `units`, and their 1-D parameters where p.reduced has them; or from
// p.gradient_end on, if the gradients of several sequences are stored one after the other.
BufferLayout with_1d(const ParameterTable& table, const std::vector<BufferLayout::Part>& units,
                     const Sharding& sharding, nn::ParameterLayouts& p) {
  std::vector<BufferLayout::Part> parts;
  for (const Section& section : table.sections) {
    if (section.is_frozen) continue;
    const Range& params_1d = section.params_1d;
    const int gradients = sharding.of(section.replicas).gradients;
    if (params_1d.size() > 0)
      parts.push_back({params_1d, gradients == 1 ? p.reduced.at(params_1d.begin) : p.gradient_end});
    if (gradients > 1) p.gradient_end += gradients * params_1d.size();
    parts.insert(parts.end(), units.begin() + section.units.begin, units.begin() + section.units.end);
  }
  return BufferLayout(parts);
}

// Elements in the buffer: all gradients of the unit.
index_t gradients_of(const Unit& unit, const Sharding& sharding) {
  return unit.range.size() * sharding.of(unit.replicas).gradients;
}

bool is_in(const ParameterTable& table, std::size_t unit, Sections which) {
  return which == Sections::all || !table.has_frozen() || !table.dense().units.contains(static_cast<index_t>(unit));
}

// UnitGradients::in_sums: layers, unless tensor-parallel ranks sum a gradient in place before it is added.
bool is_in_sums(const ParameterTable& table, const Sharding& sharding, index_t unit) {
  if (sharding.gradients != UnitGradients::in_sums || !table.is_layer(unit)) return false;
  const auto is_partial = [&](const nn::ParameterSpec& spec) {
    if (!spec.gradient_is_partial || table.layout.tp_size == 1) return false;
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      if (table.unit(unit).range.contains(spec.offset_of(layer))) return true;
    }
    return false;
  };
  return std::ranges::none_of(table.specs, is_partial);
}

// Every unit in its slot; units of other sections take no memory. The first slot begins at `begin` of the buffer.
std::vector<BufferLayout::Part> in_slots(const ParameterTable& table, Sections which, index_t begin,
                                         const Sharding& sharding = {}) {
  std::array<index_t, unit_slots> size{};
  for (std::size_t u = 0; u < table.units.size(); ++u) {
    const auto unit = static_cast<index_t>(u);
    if (!is_in(table, u, which) || is_in_sums(table, sharding, unit)) continue;
    index_t& largest = size[slot_of(table, unit)];
    largest = std::max(largest, gradients_of(table.units[u], sharding));
  }
  std::array<index_t, unit_slots> at{begin};
  for (std::size_t s = 1; s < unit_slots; ++s) at[s] = at[s - 1] + size[s - 1];
  std::vector<BufferLayout::Part> parts;
  for (std::size_t u = 0; u < table.units.size(); ++u) {
    parts.push_back({table.units[u].range, at[slot_of(table, static_cast<index_t>(u))]});
  }
  return parts;
}

// Every unit at an offset of its own; units of frozen sections take no memory.
std::vector<BufferLayout::Part> side_by_side(const ParameterTable& table, index_t begin, const Sharding& sharding) {
  std::vector<BufferLayout::Part> parts;
  for (std::size_t u = 0; u < table.units.size(); ++u) {
    parts.push_back({table.units[u].range, begin});
    if (is_in(table, u, Sections::trained)) begin += gradients_of(table.units[u], sharding);
  }
  return parts;
}

// The flat space without frozen sections.
BufferLayout whole_of_trained(const ParameterTable& table) {
  if (!table.has_frozen()) return BufferLayout::whole(table.size);
  return BufferLayout::packed({{table.dense().flat.end, table.size}});
}

// Frozen sections in the layouts of the others. Kernels of 1-D parameters write gradients together with dx: theirs are
// behind all others in the buffer, and nothing reads them. Where GEMMs read a narrower type, the frozen 2-D parameters
// are stored in that type alone.
void leave_out_frozen(const ParameterTable& table, const Sharding& sharding, ComputeWeights compute,
                      nn::ParameterLayouts& p) {
  const Section& frozen = table.dense();
  const index_t behind = std::max({p.gradient.size(), p.reduced.size(), p.gradient_end});
  std::vector<BufferLayout::Part> gradient{{frozen.params_1d, behind}};
  gradient.insert(gradient.end(), p.gradient.parts().begin(), p.gradient.parts().end());
  p.gradient = BufferLayout(gradient);
  if (compute == ComputeWeights::master) return;
  const bool sharded = sharding.size() > 1 && sharding.stage > 0;
  std::vector<Range> master{frozen.params_1d}, shards;
  const BufferLayout mine = sharded ? p.moments : whole_of_trained(table);
  for (const BufferLayout::Part& part : mine.parts()) master.push_back(part.range);
  p.master = BufferLayout::packed(master);
  if (!sharded || sharding.stage < 3) {
    p.frozen = BufferLayout({{{frozen.params_1d.end, frozen.flat.end}, frozen.params_1d.end}});
    return;
  }
  for (index_t u = frozen.units.begin; u < frozen.units.end; ++u) shards.push_back(shard_of(table.unit(u), sharding));
  p.frozen = BufferLayout::packed(shards);
  p.frozen_in = nn::FrozenIn::shards;
}

// Embedding and head, followed by one slot for all layers.
BufferLayout one_layer(const ParameterTable& table) {
  std::vector<BufferLayout::Part> parts;
  index_t behind = 0;
  for (std::size_t u = 0; u < table.units.size(); ++u) {
    if (!table.is_layer(static_cast<index_t>(u))) behind += table.units[u].range.size();
  }
  index_t at = 0;
  for (std::size_t u = 0; u < table.units.size(); ++u) {
    const Range& range = table.units[u].range;
    const bool is_layer = table.is_layer(static_cast<index_t>(u));
    parts.push_back({range, is_layer ? behind : at});
    if (!is_layer) at += range.size();
  }
  return BufferLayout(parts);
}

}  // namespace

Range shard_of(const Unit& unit, int size, int rank) {
  const index_t shard = unit.range.size() / size, begin = unit.range.begin + rank * shard;
  return {begin, begin + shard};
}

Range shard_of(const Unit& unit, const Sharding& sharding) {
  return shard_of(unit, sharding.size(unit.replicas), sharding.rank(unit.replicas));
}

std::size_t slot_of(const ParameterTable& table, index_t unit) {
  if (unit >= table.dense().units.end) return static_cast<std::size_t>(3 + (unit - table.dense().units.end) % 2);
  return table.is_layer(unit) ? static_cast<std::size_t>(1 + (unit - table.layer_unit(0)) % 2) : 0;
}

nn::ParameterLayouts parameter_layouts(const ParameterTable& table, const Sharding& sharding, ComputeWeights compute) {
  const auto everywhere = [](const Section&) { return true; };
  const BufferLayout whole = BufferLayout::whole(table.size), trained = whole_of_trained(table);
  const BufferLayout packed = BufferLayout::packed(shards_of(table, sharding, Sections::trained, everywhere));
  nn::ParameterLayouts p{.master = whole, .compute = whole, .gradient = trained, .reduced = trained, .moments = packed};
  const bool sharded = sharding.size() > 1 && sharding.stage > 0;
  if (sharded) {
    p.reduced = sharding.stage == 1 ? trained.common(packed) : packed;
    if (compute != ComputeWeights::master || sharding.stage == 3)
      p.master = BufferLayout::packed(shards_of(table, sharding, Sections::all, everywhere));
    if (sharding.stage == 3) p.compute = BufferLayout(in_slots(table, Sections::all, 0));
  }
  if (compute == ComputeWeights::codes && sharding.size() == 1) p.compute = one_layer(table);
  if (sharded && sharding.gradients != UnitGradients::by_stage) p.reduced = packed;
  const index_t behind = p.reduced.size();
  const bool apart = sharding.gradients == UnitGradients::apart;
  if (sharding.gradients != UnitGradients::by_stage || (sharded && sharding.stage >= 2)) {
    std::vector<BufferLayout::Part> parts =
        apart ? side_by_side(table, behind, sharding) : in_slots(table, Sections::trained, behind, sharding);
    for (std::size_t u = 0; u < parts.size(); ++u) {
      if (!is_in(table, u, Sections::trained)) continue;
      if (is_in_sums(table, sharding, static_cast<index_t>(u))) parts[u].at = p.reduced.at(parts[u].range.begin);
      p.gradient_end = std::max(p.gradient_end, parts[u].at + gradients_of(table.units[u], sharding));
    }
    p.gradient = with_1d(table, parts, sharding, p);
  }
  if (table.has_frozen()) leave_out_frozen(table, sharding, compute, p);
  return p;
}

nn::BufferLayout owned_layout(const ParameterTable& table, const Sharding& sharding) {
  return BufferLayout::packed(shards_of(table, sharding, Sections::trained,
                                        [&](const Section& section) { return sharding.rank(section.replicas) == 0; }));
}

}  // namespace nanotron::model
