#pragma once

// Which gradients travel as products of two thin matrices, M = P Q^T with M (m, n), P (m, r) and Q (n, r), and which
// as they are: vectors, matrices that are no larger than P and Q, and those that tensor-parallel ranks hold in
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

struct LowRankPlan {
  index_t rank = 0;  // r
  std::vector<LowRankUnit> units;  // of the table; none: nothing is compressed
  index_t errors = 0, p = 0, q = 0;  // elements of the buffers
  std::uint64_t digest = 0;          // equal for the same parts of the same tensors in the same places
};

/// Only units of these sections have matrices: the others are summed over nobody.
LowRankPlan low_rank_plan(const model::ParameterTable& table, index_t rank, const std::vector<model::Section>& summed);

/// What a section of them sends.
index_t low_rank_elements(const LowRankPlan& plan, const model::Section& section);

}  // namespace nanotron::parallel
