#pragma once

#include <cerrno>
#include <cstdint>
#include <filesystem>

namespace nanotron::io {

/// The status of a system call that is made again when a signal interrupts it.
template <class Call>
int uninterrupted(const Call& call) {
  int status = 0;
  do status = call();
  while (status != 0 && errno == EINTR);
  return status;
}

/// Takes disk for the bytes [begin, end) of a file now, which is made if there is none and keeps its size: a
/// full disk, a quota or a limit shows here, in one process and without HDF5, which survives a failed write
/// badly (1.10 hangs or crashes when it closes the file). Throws Error(system_error).
void reserve_space(const std::filesystem::path& path, std::int64_t begin, std::int64_t end);

}  // namespace nanotron::io
