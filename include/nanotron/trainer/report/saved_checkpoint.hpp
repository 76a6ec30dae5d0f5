#pragma once

#include <cstdint>

namespace nanotron::trainer {

/// A checkpoint on disk, the seconds since its beginning, and those of them in which no step could run.
struct SavedCheckpoint {
  std::int64_t step = 0;
  double taken = 0.0, waited = 0.0;
};

}  // namespace nanotron::trainer
