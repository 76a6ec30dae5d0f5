#pragma once

// How many cores' worth of time the kernel allows this process: containers and batch systems may limit CPU time (the
// quota of a control group) instead of cores (an affinity mask).

#include <cstdint>
#include <filesystem>
#include <limits>

namespace nanotron::comm {

/// Quota of the most restrictive control group of this process.
struct CoreQuota {
  double cores = std::numeric_limits<double>::infinity();  // infinity: no limit
  std::uint64_t group = 0;                                 // inode: equal for processes that share the quota
};

/// Min over the control group of this process (listed in `membership`) and its ancestors, below the folder `mounted`:
/// cpu.max of cgroup v2, cpu.cfs_quota_us / cpu.cfs_period_us of v1. A file that cannot be read is no limit.
CoreQuota core_quota(const std::filesystem::path& membership = "/proc/self/cgroup",
                     const std::filesystem::path& mounted = "/sys/fs/cgroup");

}  // namespace nanotron::comm
