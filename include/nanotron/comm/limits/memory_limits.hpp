#pragma once

// How much memory this process may take: that of the host, and what control groups allow (batch systems and
// containers).

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nanotron::comm {

/// Bytes that all processes with the same `group` may take together.
struct MemoryLimit {
  std::uint64_t bytes = 0;
  std::uint64_t group = 0;  // inode; 0: the host
  std::string name;         // "the host", or the folder of the control group
};

/// The host's first (MemTotal of `meminfo`), then those of the control group of this process and its ancestors that are
/// tighter: memory.max of version 2, memory.limit_in_bytes of version 1. What cannot be read is no limit.
std::vector<MemoryLimit> memory_limits(const std::filesystem::path& meminfo = "/proc/meminfo",
                                       const std::filesystem::path& membership = "/proc/self/cgroup",
                                       const std::filesystem::path& mounted = "/sys/fs/cgroup");

}  // namespace nanotron::comm
