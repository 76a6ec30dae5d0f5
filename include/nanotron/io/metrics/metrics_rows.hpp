#pragma once

// The rows of the tables of metrics.h5.

#include <array>
#include <cstdint>

namespace nanotron::io {

/// A column of float64 that some runs have besides those of every run. The text outlives all files.
struct ExtraColumn {
  const char *name, *unit, *description;
};
/// The values of a step, in the order of MetricsStart::extra.
using ExtraValues = std::array<double, 12>;

/// One step. Datasets of the same names: int64 step and tokens, uint64 token_hash, float64 the
/// rest.
struct MetricsRow {
  std::int64_t step = 0;  // updates done, this one included
  double loss = 0.0;
  double grad_norm = 0.0;
  double learning_rate = 0.0;
  double seconds = 0.0;  // of this step
  double tokens_per_second = 0.0;
  double mfu = 0.0;            // NaN: no stated peak is known
  double gemm_fraction = 0.0;  // of the measured GEMM peak
  std::int64_t tokens = 0;     // seen since step 0
  std::uint64_t token_hash = 0;
  ExtraValues extra{};
};

/// A step that updated nothing (run%on_bad_step): a row of the group bad_steps, which is created with its first row.
/// Columns of the same names: int64 and uint64 token_hash, float64 loss and grad_norm.
struct BadStepRow {
  std::int64_t step = 0;
  std::int64_t first_sample = 0, samples = 0;  // global sample indices of its batch
  std::int64_t left_out_from = 0;              // the first sample left out with it; first_sample if it was only skipped
  std::int64_t next_step = 0;                  // the step computed after it
  std::uint64_t token_hash = 0;
  double loss = 0.0, grad_norm = 0.0;
};

/// One start of the program: a row of the group starts, int64 and float64 columns of the same names.
/// doc/reliability.md says what follows from them. Times are seconds since 1970, NaN where they are not known.
struct StartRow {
  std::int64_t start = 0;          // from 1
  double begin = 0.0, last = 0.0;  // of the program; when it was last seen running
  double submitted = 0.0, job_began = 0.0;
  std::int64_t resumed_step = 0, last_step = -1;  // -1: none yet
  std::int64_t lowest_step = 0;                   // that training went back to within this start
  double training_seconds = 0.0;                  // of the loop, without checkpoints
  double checkpoint_seconds = 0.0;                // that training waited for them
  double left_out_seconds = 0.0;                  // of training_seconds: of steps that were rolled back
  std::int64_t end = 0;                           // StartEnd
};
enum class StartEnd : std::int64_t { unknown, finished, stopped, failed };  // unknown: running, or killed

/// A checkpoint of a start: a row of the group start_checkpoints.
struct StartCheckpointRow {
  std::int64_t start = 0, step = 0;
  double training_seconds = 0.0;  // of the start before it, without those left out
};

}  // namespace nanotron::io
