#pragma once

// A file of a few lines with the state of a run, for job scripts and monitors: nanotron_hpc --status FILE. Always
// whole: written beside the old one and renamed.
//
//   state = running               starting, running, finished, failed; exit code 75: stopped, or held, which a user
//                                 requested by the file STOP; a job script writes launching and judged
//   step = 120                    at the start, the last checkpoint or the end
//   steps = 1000                  run%steps
//   output_dir = a                run%output_dir
//   directory = a/b               checkpoint%directory
//   checkpoint = a/b/step_00000100     the newest that this start wrote, or an earlier one of the same job; empty:
//                                      none. Also where copies on other hosts are (neighbour_copies.hpp): no folder
//   checkpoint_seconds = 12.5     what the last one in checkpoint%directory took; 0: none was written
//   exit_code = 70                if the state is failed: a rank reported why it ends
//   error = step 9: ...           the first line of that
//
// A run that ends in any other way leaves `starting` or `running`: an exit code 0 of a launcher that started nothing is
// not a finished run. A start that finds the file of an earlier, unfinished one with the same directory belongs to the
// same job: it resumes from that one's checkpoints, whatever checkpoint%resume is.

#include <cstdint>
#include <filesystem>
#include <string>

#include "nanotron/base/log.hpp"

namespace nanotron::io {

enum class RunState { starting, running, finished, stopped, held, failed };

class RunStatus {
 public:
  /// Only the writing rank reads and writes the file; with an empty name nothing is read or written. directory: of the
  /// checkpoints. A file that cannot be written is a warning, once, and tried again with the next write.
  RunStatus(std::filesystem::path file, std::string output_dir, std::string directory, std::int64_t steps, Log& log);

  /// The newest checkpoint or copy of this start, or of an earlier one of this job; empty: none.
  const std::string& checkpoint() const { return checkpoint_; }
  /// What a checkpoint took, of this start or an earlier one of the job; 0: not known.
  double checkpoint_seconds() const { return checkpoint_seconds_; }
  void write(RunState state, std::int64_t step);
  void add_checkpoint(std::int64_t step, const std::filesystem::path& folder, double seconds);
  void add_copy(std::int64_t step, const std::filesystem::path& folder);

 private:
  std::filesystem::path file_;
  std::string output_dir_, directory_;
  std::int64_t steps_;
  std::string checkpoint_;
  double checkpoint_seconds_ = 0.0;
  bool has_warned_ = false;
  Log& log_;
};

/// Called by the rank that fails, which may not be the one that writes the file: the state of a run that is starting or
/// running becomes failed; the rest stays. A file that cannot be read or written is left alone.
void mark_failed(const std::filesystem::path& file, int exit_code, const std::string& message);

}  // namespace nanotron::io
