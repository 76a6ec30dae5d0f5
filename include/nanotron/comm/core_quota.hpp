#pragma once

// How much of the node's cores the kernel lets this process have: containers and batch systems may limit the time (a
// quota of a control group) and not the cores (an affinity mask).

#include <cstdint>
#include <filesystem>
#include <limits>

namespace nanotron::comm {

/// Of the control group that limits this process the most.
struct CoreQuota {
  double cores = std::numeric_limits<double>::infinity();  // none
  std::uint64_t group = 0;                                 // its inode: the same for processes that share the limit
};

/// Of the group this process is in (listed in `membership`) and those above it, below the folder `mounted`: cpu.max of
/// version 2, cpu.cfs_quota_us and cpu.cfs_period_us of version 1. What cannot be read limits nothing.
CoreQuota core_quota(const std::filesystem::path& membership = "/proc/self/cgroup",
                     const std::filesystem::path& mounted = "/sys/fs/cgroup");

}  // namespace nanotron::comm
