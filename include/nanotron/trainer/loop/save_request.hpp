#pragma once

// A checkpoint on demand, without a stop: a file named SAVE in the run directory, or SIGURG to any rank.

#include <cstdint>
#include <filesystem>

#include "nanotron/base/log.hpp"

namespace nanotron::trainer {

/// Every rank has one, for a training stage. A request stays open until a checkpoint that began after it is on disk;
/// the file asks once until it is removed, however often it is touched. A file that rank 0 cannot remove is a warning:
/// it is not looked at again, a signal still is.
class SaveRequest {
 public:
  SaveRequest(const std::filesystem::path& output_dir, Log& log);

  /// Whether this rank has a request that no checkpoint answers yet. Call it once a step. Rank 0 looks for the file
  /// once a second, since a look may ask the server of a file system; one that fails is a warning, and the next one
  /// looks again.
  bool is_open(bool looks_at_files);
  /// The checkpoint of `step`, which begins now, answers what is_open() found, and what comes before it is on disk. All
  /// ranks call this and the next two.
  void answer_with(std::int64_t step);
  /// The checkpoint of `step` is on disk: rank 0 removes the file.
  void saved(std::int64_t step);
  /// The run went back to `step`: what a later checkpoint should have answered is open again.
  void rolled_back_to(std::int64_t step);

 private:
  bool file_is_there();

  std::filesystem::path file_;
  Log& log_;
  bool came_ = false;    // a signal, to this rank
  bool again_ = false;   // another one, after the checkpoint that answers began
  bool looks_ = true;    // false: the file cannot be removed
  bool failed_ = false;  // the last look
  bool is_open_ = false;
  double next_look_ = 0.0;
  std::int64_t answered_by_ = 0;  // a step; 0: none
};

}  // namespace nanotron::trainer
