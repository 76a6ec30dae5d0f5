#pragma once

// A file of a few lines that says how a run stands, for job scripts and monitors: nanotron_hpc --status FILE. Always
// whole: written beside the old one and renamed.
//
//   state = running               starting, running, finished, or stopped (exit code 75: the same command goes on)
//   step = 120                    of the last line written
//   steps = 1000                  run%steps
//   checkpoint = 100 a/b/step_00000100     the newest that this start wrote, or one before it with the same file;
//   empty: none
//
// A run that ends in any other way leaves `starting` or `running`: an exit code 0 of a launcher that started nothing is
// not a finished run.

#include <cstdint>
#include <filesystem>
#include <string>

#include "nanotron/base/log.hpp"

namespace nanotron::io {

enum class RunState { starting, running, finished, stopped };

class RunStatus {
 public:
  /// Of the rank that speaks; others, and an empty file name, write nothing. A file that cannot be written is a
  /// warning, once.
  RunStatus(std::filesystem::path file, std::int64_t steps, Log& log);

  void write(RunState state, std::int64_t step);
  void add_checkpoint(std::int64_t step, const std::filesystem::path& folder);

 private:
  std::filesystem::path file_;
  std::int64_t steps_;
  std::string checkpoint_;
  Log& log_;
};

}  // namespace nanotron::io
