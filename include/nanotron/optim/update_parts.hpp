#pragma once

#include <vector>

#include "nanotron/model/parameter_table.hpp"

namespace nanotron::optim {

/// Elements that lie in one piece in each of the buffers, and where they begin there.
struct UpdatePart {
  Range range;  // of the flat space
  index_t parameters = 0, gradient = 0, moments = 0;
  bool decays = false;
  double fan_in_ratio = 1.0;

  index_t size() const { return range.size(); }
};

/// What places.moments has of a range.
std::vector<UpdatePart> update_parts(const Range& range, const nn::ParameterLayouts& layouts);

/// What it has of the whole flat space, cut as model::update_ranges too.
std::vector<UpdatePart> update_parts(const model::ParameterTable& table, const nn::ParameterLayouts& layouts);

}  // namespace nanotron::optim
