#pragma once

#include <mpi.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/io/blocks/block_exchange.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"

namespace nanotron::io {

class CheckpointDraft;
class PageBuffers;
class StateSnapshot;

/// Most blocks in the memory of a rank while training waits for a checkpoint.
inline constexpr std::int64_t blocks_in_memory = 3 * held_blocks;

/// Writes checkpoints into one directory and keeps the newest. A checkpoint is written under
/// step_XXXXXXXX.partial: blocks are hashed in memory (block_exchange.hpp), written, read back from the disk and
/// compared, and synced; then it gets its manifest, and only then its name. An error before that leaves earlier
/// checkpoints as they were. Each rank writes and reads for itself: a failing disk is an error of one rank, which all
/// learn. Diverged weights may still be finite in one more checkpoint. So a checkpoint replaces older ones only once it
/// is known good: a later step had a finite loss and gradient norm.
class CheckpointWriter {
 public:
  /// `world` is borrowed. keep_last 0 keeps all. `log` is used by the rank that writes it.
  CheckpointWriter(MPI_Comm world, std::filesystem::path directory, std::int64_t keep_last, Log& log);
  ~CheckpointWriter();  // abandons what start() began

  /// Call one of the three once, before the first write: the run starts at step 0, or continues from the
  /// checkpoint `folder` of `step`. Newer checkpoints in the directory (all, if `folder` is elsewhere)
  /// belong to an abandoned branch or are damaged: they are moved to <directory>.superseded-<n>, so that
  /// a later 'auto' does not take them. Collective.
  void start_fresh();
  void continue_from(const std::filesystem::path& folder, std::int64_t step);
  /// The same where the state of `step` is not from a checkpoint (neighbour_copies.hpp). Those up to it stay.
  void continue_at(std::int64_t step);

  /// Collective over world; returns when the checkpoint is on disk. A full disk, a missing permission and the like
  /// give Error(system_error), the same on all ranks, and the partial folder is removed. An existing checkpoint of
  /// the same step is replaced.
  void write(const CheckpointContents& contents);

  /// The same without waiting for the disk. The contents are copied into memory that reserve() has allocated; they must
  /// not change until finish_copy() has returned or the writer is destroyed, except `compression`. Then a thread
  /// assembles the blocks with those of the other ranks, and others write them and read them back. advance(), after
  /// each step, continues when all ranks are ready and returns whether the checkpoint is published; finish() waits for
  /// that. start() and write() finish an earlier one. Where MPI has no MPI_THREAD_MULTIPLE, start() returns when the
  /// blocks are assembled. Collective, except reserve() and finish_copy(); errors as in write().
  void reserve(const CheckpointContents& contents);
  void start(const CheckpointContents& contents);
  void finish_copy();
  bool advance();
  bool finish();  // whether there was one
  bool is_writing() const { return draft_ != nullptr; }

  /// Call it after a step that began at the newest checkpoint had a finite loss and gradient norm: it is then known
  /// good; one that is still being written, once published. So which one is newest_known_good() after finish() does not
  /// depend on the disk. Deletes checkpoints older than the newest keep_last known good ones, but no symbolic links.
  /// Known good ones are of this run and its earlier starts (the file known_good of the directory), or the one it
  /// resumed from. All ranks call; rank 0 deletes, and a failure is a warning. Cheap when nothing was written since.
  void mark_known_good();

  /// The newest known good checkpoint. Until this run has one: the newest complete checkpoint before the
  /// one it resumed from; empty if there is none. The same on all ranks.
  const std::filesystem::path& newest_known_good() const { return newest_known_good_; }
  /// The newest complete checkpoint beside `folder` that is older than it; empty if there is none. Collective.
  std::filesystem::path older_than(const std::filesystem::path& folder) const;

 private:
  template <class F>
  void guarded(const std::filesystem::path& partial, const F& work);
  void drop();
  void record(std::int64_t step);
  void forget_from(std::int64_t step);
  void set_aside_newer(std::int64_t step);  // rank 0
  void forget_published();                  // rank 0
  void remove_partial();                    // rank 0
  void remove_old();                        // rank 0
  void keep_known_good();                   // rank 0

  MPI_Comm world_;
  int rank_ = 0;
  std::filesystem::path directory_;
  std::int64_t keep_last_;
  Log& log_;
  // Steps in directory_, ascending; rank 0 has those of earlier starts.
  std::vector<std::int64_t> known_good_, not_yet_good_;
  std::filesystem::path newest_, newest_known_good_;  // may be outside of directory_
  bool has_threads_ = false;                          // MPI_THREAD_MULTIPLE, on all ranks
  std::unique_ptr<PageBuffers> memory_;               // of blocks that wait
  std::unique_ptr<StateSnapshot> snapshot_;
  std::unique_ptr<CheckpointDraft> draft_;  // being written
  bool draft_is_good_ = false;              // known good once it is published
};

}  // namespace nanotron::io
