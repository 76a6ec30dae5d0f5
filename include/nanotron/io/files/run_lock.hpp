#pragma once

// <directory>/run.lock: two runs that write into one directory would destroy each other's files.

#include <filesystem>

#include "nanotron/base/log.hpp"

namespace nanotron::io {

/// Owns an flock() on <directory>/run.lock; the file names the holder. The system releases the lock when the
/// process ends, however it ends; the file stays. Called by one rank. Move-only.
class RunLock {
 public:
  /// Creates the directory. If another run holds the lock: warns, waits up to `patience` seconds for its end, then
  /// Error(system_error) naming the holder. Where the file system has no locks: a warning, and no lock.
  RunLock(const std::filesystem::path& directory, Log& log, double patience = 5.0);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;

  const std::filesystem::path& file() const { return file_; }

 private:
  void take(double patience, Log& log);

  std::filesystem::path file_;
  int descriptor_ = -1;
};

}  // namespace nanotron::io
