#pragma once

// Which samples of training the sequences of a micro-batch are.

#include "nanotron/base/types.hpp"

namespace nanotron {

/// Sequences of a rank from its sequence `before` of a global batch on. The batch begins at the sample `first`; shards
/// take `at_once` samples each in turn.
struct SampleNumbers {
  index_t first = -1;  // below 0: unknown, not a batch of training
  std::int32_t at_once = 1, shards = 1, shard = 0, before = 0;

  NANOTRON_FUNCTION bool are_known() const { return first >= 0; }
  /// Global number of the sample of sequence s.
  NANOTRON_FUNCTION index_t of(index_t s) const {
    const index_t j = before + s;
    return first + (j / at_once * shards + shard) * at_once + j % at_once;
  }
  /// From the sequence s on.
  SampleNumbers from(index_t s) const {
    SampleNumbers later = *this;
    later.before += static_cast<std::int32_t>(s);
    return later;
  }
};

}  // namespace nanotron
