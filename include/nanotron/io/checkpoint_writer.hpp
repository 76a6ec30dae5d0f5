#pragma once

#include <mpi.h>

#include <filesystem>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/io/checkpoint.hpp"

namespace nanotron::io {

/// Writes checkpoints into one directory and keeps the newest. A checkpoint is written under
/// step_XXXXXXXX.partial, synced, hashed by all ranks, given its manifest, and only then renamed:
/// whatever happens before leaves the earlier ones as they were.
class CheckpointWriter {
 public:
  /// `world` is borrowed. keep_last 0 keeps all. `log` is used by the rank that speaks.
  CheckpointWriter(MPI_Comm world, std::filesystem::path directory, std::int64_t keep_last,
                   Log& log);

  /// Once, before the first write: the run goes on behind `step` (-1: from the beginning). Newer
  /// checkpoints in the directory belong to another history, or are damaged: they are moved to
  /// <directory>.superseded-<n>, so that a later 'auto' does not take them. Collective.
  void continue_from(std::int64_t step);

  /// Collective over world; returns when the checkpoint is on disk. One collective write per
  /// dataset. A full disk, a missing permission and the like give Error(system_error), the same on
  /// all ranks, and the partial folder is removed. An existing checkpoint of the same step is
  /// replaced. Then deletes checkpoints older than the newest keep_last of those known to be good:
  /// written by this run or the one it went on from.
  void write(const CheckpointContents& contents);

 private:
  void write_tensors(const std::filesystem::path& path, const CheckpointContents& contents);
  void write_manifest(const std::filesystem::path& folder, std::int64_t step);
  void publish(const std::filesystem::path& partial, std::int64_t step);  // rank 0
  void set_aside_newer(std::int64_t step);                                // rank 0
  void remove_old(std::int64_t just_written);                             // rank 0

  MPI_Comm world_;
  int rank_ = 0;
  std::filesystem::path directory_;
  std::int64_t keep_last_;
  Log& log_;
  std::vector<std::int64_t> good_;  // steps, ascending
};

}  // namespace nanotron::io
