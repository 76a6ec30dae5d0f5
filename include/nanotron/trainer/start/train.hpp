#pragma once

// Records what ended a run, in its folder and its status file.

#include <mpi.h>

#include <filesystem>
#include <string>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::trainer {

/// Any rank may be the one that fails, alone or with the others: the rank that prints the message appends it to
/// run.log, and sets the state in the file of --status to failed (io/files/run_status.hpp).
class LastWords {
 public:
  /// Call it once the folder belongs to this run: before, nothing is written.
  void belong_to(const std::filesystem::path& output_dir, const std::filesystem::path& status);
  /// Files that cannot be written are left as they are.
  void tell(int exit_code, const std::string& message) const;

 private:
  std::filesystem::path log_, status_;
};

// A training run, from a checked deck to its exit code.

/// config: from load_config(); status: of io::RunStatus, may be empty; start: wall_seconds() at the start of the
/// program; last_words get the run's folder. Returns stopped_early if steps remain. Collective.
ExitCode train(const deck::Config& config, MPI_Comm world, const std::string& status, double start,
               LastWords& last_words);

}  // namespace nanotron::trainer
