#pragma once

#include <mpi.h>

#include <filesystem>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/io/checkpoint.hpp"

namespace nanotron::io {

/// Writes checkpoints into one directory and keeps the newest. A checkpoint is written under
/// step_XXXXXXXX.partial, synced, hashed by all ranks, given its manifest, and only then renamed: an
/// error before that leaves earlier checkpoints as they were. Diverged weights may still be finite in
/// one more checkpoint. So a checkpoint replaces older ones only once it is known good: a later step
/// had a finite loss and gradient norm.
class CheckpointWriter {
 public:
  /// `world` is borrowed. keep_last 0 keeps all. `log` is used by the rank that speaks.
  CheckpointWriter(MPI_Comm world, std::filesystem::path directory, std::int64_t keep_last,
                   Log& log);

  /// Call one of the two once, before the first write: the run starts at step 0, or continues from the
  /// checkpoint `folder` of `step`. Newer checkpoints in the directory (all, if `folder` is elsewhere)
  /// belong to an abandoned branch or are damaged: they are moved to <directory>.superseded-<n>, so that
  /// a later 'auto' does not take them. Collective.
  void begin_anew();
  void continue_from(const std::filesystem::path& folder, std::int64_t step);

  /// Collective over world; returns when the checkpoint is on disk. One collective write per
  /// dataset. A full disk, a missing permission and the like give Error(system_error), the same on
  /// all ranks, and the partial folder is removed. An existing checkpoint of the same step is
  /// replaced.
  void write(const CheckpointContents& contents);

  /// Call after a step from the newest checkpoint had a finite loss and gradient norm: it is then known
  /// good. Deletes checkpoints older than the newest keep_last known good ones; these are of this run, or
  /// the one it resumed from. All ranks call; rank 0 deletes, and a failure is a warning. Cheap when
  /// nothing was written since.
  void mark_known_good();

  /// The newest known good checkpoint. Until this run has one: the newest complete checkpoint before the
  /// one it resumed from; empty if there is none. The same on all ranks.
  const std::filesystem::path& newest_known_good() const { return newest_known_good_; }

 private:
  void write_tensors(const std::filesystem::path& path, const CheckpointContents& contents);
  void write_manifest(const std::filesystem::path& folder, std::int64_t step);
  void publish(const std::filesystem::path& partial, std::int64_t step);  // rank 0
  void set_aside_newer(std::int64_t step);                                // rank 0
  void remove_partial();                                                  // rank 0
  void remove_old();                                                      // rank 0

  MPI_Comm world_;
  int rank_ = 0;
  std::filesystem::path directory_;
  std::int64_t keep_last_;
  Log& log_;
  std::vector<std::int64_t> known_good_, not_yet_good_;  // steps in directory_, ascending
  std::filesystem::path newest_, newest_known_good_;     // may be outside of directory_
};

}  // namespace nanotron::io
