#pragma once

// <directory>/run.lock: two runs that write into one directory would take each other's files apart.

#include <filesystem>

#include "nanotron/base/log.hpp"

namespace nanotron::io {

/// Owns an flock() on <directory>/run.lock, which says who holds it. The system gives the lock back when the
/// process ends, in whatever way; the file stays. One rank. Move-only.
class RunLock {
 public:
  /// Makes the directory. Waits up to `patience` seconds for a run that is just ending, and says so, then
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
