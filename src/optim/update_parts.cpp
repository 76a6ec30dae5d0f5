#include "nanotron/optim/update_parts.hpp"

#include <algorithm>

namespace nanotron::optim {
namespace {

// The end of the first part of `range` that is contiguous in the buffer.
index_t contiguous_end(const nn::BufferLayout& place, const Range& range) {
  return place.within(range).front().range.end;
}

}  // namespace

std::vector<UpdatePart> update_parts(const Range& range, const nn::ParameterLayouts& layouts) {
  std::vector<UpdatePart> parts;
  for (const nn::BufferLayout::Part& held : layouts.moments.within(range)) {
    for (index_t begin = held.range.begin, end = 0; begin < held.range.end; begin = end) {
      const Range rest{begin, held.range.end};
      end = std::min(contiguous_end(layouts.master, rest), contiguous_end(layouts.reduced, rest));
      parts.push_back({.range = {begin, end},
                       .parameters = layouts.master.at(begin),
                       .gradient = layouts.reduced.at(begin),
                       .moments = held.at + begin - held.range.begin});
    }
  }
  return parts;
}

std::vector<UpdatePart> update_parts(const model::ParameterTable& table, const nn::ParameterLayouts& layouts) {
  std::vector<UpdatePart> all;
  for (const auto& [range, decays, fan_in_ratio] : model::update_ranges(table)) {
    for (UpdatePart& part : update_parts(range, layouts)) {
      part.decays = decays;
      part.fan_in_ratio = fan_in_ratio;
      all.push_back(part);
    }
  }
  return all;
}

}  // namespace nanotron::optim
