#pragma once

// The ranks of a pipeline stage among which experts are distributed: tp x cp x dp, tp varying fastest, where
// parallel%expert_tp = 1 keeps experts whole on each tensor-parallel rank; else cp x dp.

#include "nanotron/deck/keys/parallel.hpp"

namespace nanotron::deck {

/// Whether experts are whole on each of several tensor-parallel ranks, which then send tokens of their own to them.
inline bool ep_spans_tp(const ParallelConfig& p) { return p.expert_tp == 1 && p.tp > 1; }

/// Such ranks per rank of the data-parallel group.
inline std::int64_t tp_in_ep(const ParallelConfig& p) { return ep_spans_tp(p) ? p.tp : 1; }

}  // namespace nanotron::deck
