#pragma once

// What ended a run, for those who look at its folder.

#include <filesystem>
#include <string>

namespace nanotron::trainer {

/// Any rank may be the one that fails, alone or with the others: the rank that prints the message appends it to
/// run.log, and sets the state in the file of --status to failed (io/files/run_status.hpp).
class LastWords {
 public:
  /// Once the run's folder is this run's: before, nothing is written.
  void belong_to(const std::filesystem::path& output_dir, const std::filesystem::path& status);
  /// Files that cannot be written are left as they are.
  void tell(int exit_code, const std::string& message) const;

 private:
  std::filesystem::path log_, status_;
};

}  // namespace nanotron::trainer
