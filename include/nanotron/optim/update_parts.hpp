#pragma once

#include <vector>

#include "nanotron/model/parameters/parameter_table.hpp"

namespace nanotron::optim {

/// Elements that are contiguous in each of the buffers, and their offsets there.
struct UpdatePart {
  Range range;  // of the flat space
  index_t parameters = 0, gradient = 0, moments = 0;
  bool decays = false;
  double fan_in_ratio = 1.0;

  index_t size() const { return range.size(); }
};

/// The parts of `range` that layouts.moments stores.
std::vector<UpdatePart> update_parts(const Range& range, const nn::ParameterLayouts& layouts);

/// The same for the whole flat space, split also at the boundaries of model::update_ranges.
std::vector<UpdatePart> update_parts(const model::ParameterTable& table, const nn::ParameterLayouts& layouts);

}  // namespace nanotron::optim
