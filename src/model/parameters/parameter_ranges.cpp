// Ranges of the flat buffers over which optimizer, gradient norm and cast loop, instead of over tensors.

#include <algorithm>

#include "nanotron/model/parameters/parameter_table.hpp"

namespace nanotron::model {

using nn::ParameterSpec;

std::vector<Range> owned_ranges(const ParameterTable& table) {
  std::vector<Range> ranges;
  for (const ParameterSpec& spec : table.specs) {
    if (spec.owned.size() == 0) continue;
    const bool whole = spec.owned == spec.local;
    // Owned rows are contiguous. Row-parallel weights are never stored twice, so they are owned whole.
    const index_t skip = whole ? 0 : (spec.owned.begin - spec.local.begin) * spec.columns;
    const index_t count = whole ? spec.local_size() : spec.owned.size() * spec.columns;
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      const index_t begin = spec.offset_of(layer) + skip;
      ranges.push_back({begin, begin + count});
    }
  }
  std::ranges::sort(ranges, {}, &Range::begin);
  std::vector<Range> merged;
  for (const Range& r : ranges) {
    if (!merged.empty() && merged.back().end == r.begin) {
      merged.back().end = r.end;
    } else {
      merged.push_back(r);
    }
  }
  return merged;
}

std::vector<UpdateRange> update_ranges(const ParameterTable& table) {
  std::vector<UpdateRange> starts;
  for (const ParameterSpec& spec : table.specs) {
    for (index_t layer = 0; layer < spec.local_layers(); ++layer) {
      starts.push_back({{spec.offset_of(layer), table.size}, spec.decays, spec.fan_in_ratio});
    }
  }
  std::ranges::sort(starts, {}, [](const UpdateRange& s) { return s.range.begin; });
  std::vector<UpdateRange> ranges;
  for (const UpdateRange& s : starts) {
    if (!ranges.empty() && ranges.back().decays == s.decays && ranges.back().fan_in_ratio == s.fan_in_ratio) continue;
    if (!ranges.empty()) ranges.back().range.end = s.range.begin;
    ranges.push_back(s);
  }
  return ranges;
}

}  // namespace nanotron::model
