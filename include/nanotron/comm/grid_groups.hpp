#pragma once

// Which groups a grid has, as pure functions: for the grid of a run and for its start on paper.

#include "nanotron/comm/process_grid.hpp"

namespace nanotron::comm {

/// Whether ranks have a group of this kind, perhaps of one rank; expert kinds need has_expert_groups().
bool has_group(const GridShape& shape, GroupKind kind);

/// Whether the group of the rank at `at` has a channel for bulk data.
bool has_bulk_channel(const GridShape& shape, const GridCoordinate& at, GroupKind kind);

/// Whether the first and the last stage of this rank's pipeline hold the same embedding.
bool has_embedding_group(const GridShape& shape, const GridCoordinate& at);

}  // namespace nanotron::comm
