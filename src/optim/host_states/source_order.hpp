#pragma once

// The order in which an update of states in host memory goes through the parameters: that in which the next forward
// reads their weights. Private to optim.

#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/optim/update_operands.hpp"
#include "nanotron/optim/optimizer.hpp"
#include "optim/host_states/host_buckets.hpp"

namespace nanotron::optim {

/// Parts of long ranges; or, with the random bits of their states in bf16, of one tensor each.
struct NoisyPart {
  UpdatePart part;
  kernels::RoundingNoise noise{};
  index_t source = model::no_unit;  // that reads its weights first: none is before its update; no_unit: several

  Range moments() const { return {part.moments, part.moments + part.size()}; }
};

/// The elements `range` of the flat space, of a part that has them.
NoisyPart piece_of(NoisyPart part, const Range& range);

/// 1-D parameters first, then the sources in their order: pieces of the parts, with their sources.
std::vector<NoisyPart> by_source(const std::vector<NoisyPart>& parts, const model::ParameterTable& table);

std::vector<SourceElements> elements_of(const std::vector<NoisyPart>& parts);

}  // namespace nanotron::optim
