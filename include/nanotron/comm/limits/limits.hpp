#pragma once

// What the kernel lets this process take of its host.

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace nanotron::comm {

// How many cores' worth of time the kernel allows this process: containers and batch systems may limit CPU time (the
// quota of a control group) instead of cores (an affinity mask).

/// Quota of the most restrictive control group of this process.
struct CoreQuota {
  double cores = std::numeric_limits<double>::infinity();  // infinity: no limit
  std::uint64_t group = 0;                                 // inode: equal for processes that share the quota
};

/// Min over the control group of this process (listed in `membership`) and its ancestors, below the folder `mounted`:
/// cpu.max of cgroup v2, cpu.cfs_quota_us / cpu.cfs_period_us of v1. A file that cannot be read means no limit.
CoreQuota core_quota(const std::filesystem::path& membership = "/proc/self/cgroup",
                     const std::filesystem::path& mounted = "/sys/fs/cgroup");

// How much memory this process may take: that of the host, and what control groups allow (batch systems and
// containers).

/// Bytes that all processes with the same `group` may take together.
struct MemoryLimit {
  std::uint64_t bytes = 0;
  std::uint64_t group = 0;  // inode; 0: the host
  std::string name;         // "the host", or the folder of the control group
};

/// The host's limit first (MemTotal of `meminfo`), then tighter limits of this process's control group and its
/// ancestors: memory.max of version 2, memory.limit_in_bytes of version 1. A file that cannot be read means no limit.
std::vector<MemoryLimit> memory_limits(const std::filesystem::path& meminfo = "/proc/meminfo",
                                       const std::filesystem::path& membership = "/proc/self/cgroup",
                                       const std::filesystem::path& mounted = "/sys/fs/cgroup");

}  // namespace nanotron::comm
