#pragma once

// Which gradients PowerSGD compresses to low rank, M = P Q^T with M (m, n), P (m, r) and Q (n, r). Not compressed:
// 1-D parameters; matrices with m n <= r (m + n); partial gradients, which several tensor-parallel ranks hold, since
// each rank approximates only what it holds.

#include <vector>

#include "nanotron/model/parameters/parameter_table.hpp"

namespace nanotron::parallel {

/// Offsets in the flat gradient, and in the buffers of E, P and Q.
struct LowRankMatrix {
  index_t gradient = 0, rows = 0, columns = 0;
  index_t error = 0, p = 0, q = 0;
};

struct LowRankUnit {
  std::vector<LowRankMatrix> matrices;  // in the order of the flat space
  std::vector<Range> whole;             // of the flat space: the rest of the unit, not compressed
  Range errors, p, q;                   // of the buffers
};

/// The plan of one section.
struct LowRankPlan {
  index_t rank = 0;                  // r
  std::vector<LowRankUnit> units;    // of the section
  index_t errors = 0, p = 0, q = 0;  // elements of the buffers
};

LowRankPlan low_rank_plan(const model::ParameterTable& table, const model::Section& section, index_t rank);

/// Elements of the section that are all-reduced per step.
index_t low_rank_elements(const LowRankPlan& plan, const model::Section& section);

/// Hash of rank and, per tensor and layer, of name, layer number, offset and local shape.
std::uint64_t low_rank_digest(const model::ParameterTable& table, index_t rank);

}  // namespace nanotron::parallel
