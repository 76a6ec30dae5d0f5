#pragma once

// Which gradients travel as products of two thin matrices, M = P Q^T with M (m, n), P (m, r) and Q (n, r), and which
// as they are: 1-D parameters, matrices that are no larger than P and Q, and those that tensor-parallel ranks hold in
// common, since each rank approximates what it holds.

#include <string>
#include <vector>

#include "nanotron/model/parameter_table.hpp"

namespace nanotron::parallel {

/// Offsets in the flat gradient, and in the buffers of errors, of P and of Q.
struct LowRankMatrix {
  index_t gradient = 0, rows = 0, columns = 0;
  index_t error = 0, p = 0, q = 0;
};

struct LowRankUnit {
  std::vector<LowRankMatrix> matrices;  // in the order of the flat space
  std::vector<Range> whole;             // of the flat space: what else is in the unit
  Range errors, p, q;                   // of the buffers
};

/// Of one section.
struct LowRankPlan {
  index_t rank = 0;  // r
  std::vector<LowRankUnit> units;    // of the section
  index_t errors = 0, p = 0, q = 0;  // elements of the buffers
};

LowRankPlan low_rank_plan(const model::ParameterTable& table, const model::Section& section, index_t rank);

/// Elements that the section sends.
index_t low_rank_elements(const LowRankPlan& plan, const model::Section& section);

/// Equal for the same parts of the same tensors in the same places, whatever of them is compressed.
std::uint64_t low_rank_digest(const model::ParameterTable& table, index_t rank);

}  // namespace nanotron::parallel
