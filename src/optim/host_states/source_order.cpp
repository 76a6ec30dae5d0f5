#include "optim/host_states/source_order.hpp"

#include <algorithm>

namespace nanotron::optim {
namespace {

struct SourceRange {
  index_t source;
  Range flat;
};

// Disjoint: a unit that several sources read is that of the first.
std::vector<SourceRange> ranges_of(const model::ParameterTable& table) {
  std::vector<SourceRange> ranges;
  for (const model::Section& section : table.sections) ranges.push_back({model::no_unit, section.params_1d});
  for (index_t source = 0; source < table.dense().units.size(); ++source) {
    for (const model::Section& section : table.sections) {
      const index_t unit = table.unit_of(source, section);
      if (unit != model::no_unit) ranges.push_back({source, table.unit(unit).range});
    }
  }
  return ranges;
}

}  // namespace

NoisyPart piece_of(NoisyPart part, const Range& range) {
  const index_t offset = range.begin - part.part.range.begin;
  part.part.range = range;
  part.part.parameters += offset;
  part.part.gradient += offset;
  part.part.moments += offset;
  part.noise.begin += offset;
  return part;
}

std::vector<NoisyPart> by_source(const std::vector<NoisyPart>& parts, const model::ParameterTable& table) {
  std::vector<NoisyPart> sorted = parts, pieces;
  std::ranges::sort(sorted, {}, [](const NoisyPart& p) { return p.part.range.begin; });
  for (const auto& [source, flat] : ranges_of(table)) {
    for (const NoisyPart& part : sorted) {
      const Range common{std::max(flat.begin, part.part.range.begin), std::min(flat.end, part.part.range.end)};
      if (common.size() <= 0) continue;
      pieces.push_back(piece_of(part, common));
      pieces.back().source = source;
    }
  }
  return pieces;
}

std::vector<SourceElements> elements_of(const std::vector<NoisyPart>& parts) {
  std::vector<SourceElements> all;
  for (const NoisyPart& part : parts) all.push_back({part.source, part.moments()});
  return all;
}

}  // namespace nanotron::optim
