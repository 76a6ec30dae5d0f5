#pragma once

#include <cerrno>
#include <cstdint>
#include <filesystem>

namespace nanotron::io {

/// Repeats a system call while signals interrupt it (EINTR). Returns its status.
template <class Call>
int uninterrupted(const Call& call) {
  int status = 0;
  do status = call();
  while (status != 0 && errno == EINTR);
  return status;
}

/// Reserves disk space for the bytes [begin, end) of a file; creates the file if needed and keeps its size. A
/// full disk, a quota or a limit is thus found here, in one process and outside of HDF5, which handles failed
/// writes badly (1.10 hangs or crashes when it closes the file). Throws Error(system_error).
void reserve_space(const std::filesystem::path& path, std::int64_t begin, std::int64_t end);

}  // namespace nanotron::io
