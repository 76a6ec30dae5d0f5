#include "nanotron/comm/core_quota.hpp"

#include <sys/stat.h>

#include <fstream>
#include <limits>
#include <string>
#include <system_error>
#include <vector>

namespace nanotron::comm {
namespace {

namespace fs = std::filesystem;

constexpr double unlimited = std::numeric_limits<double>::infinity();

// quota / period in cores. The quota is "max" (v2) or -1 (v1) where there is no limit.
double cores_of(const fs::path& group) {
  double quota = 0.0, period = 0.0;
  if (!(std::ifstream(group / "cpu.max") >> quota >> period)) {
    std::ifstream(group / "cpu.cfs_quota_us") >> quota;
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  return quota > 0.0 && period > 0.0 ? quota / period : unlimited;
}

std::uint64_t inode_of(const fs::path& group) {
  struct stat status {};
  return ::stat(group.c_str(), &status) == 0 ? status.st_ino : 0;
}

// Min over the group and its ancestors up to the folder where the hierarchy is mounted.
CoreQuota tightest(const fs::path& mounted, const std::string& path) {
  std::error_code ignored;
  fs::path group = (mounted / fs::path(path).relative_path()).lexically_normal();
  // In a container the path may be the host's name for the group that is mounted as the root.
  if (path.find("..") != path.npos || !fs::is_directory(group, ignored)) group = mounted;
  CoreQuota quota;
  for (;; group = group.parent_path()) {
    if (const double cores = cores_of(group); cores < quota.cores) quota = {cores, inode_of(group)};
    if (group == mounted || !group.has_relative_path()) return quota;
  }
}

// Where the hierarchy of these controllers may be mounted; empty if it has no cpu controller.
std::vector<fs::path> hierarchies(const fs::path& mounted, const std::string& controllers) {
  if (controllers.empty()) return {mounted};
  const bool has_cpu = ("," + controllers + ",").find(",cpu,") != controllers.npos;
  return has_cpu ? std::vector<fs::path>{mounted / controllers, mounted / "cpu"} : std::vector<fs::path>{};
}

}  // namespace

CoreQuota core_quota(const fs::path& membership, const fs::path& mounted) {
  CoreQuota quota;
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);) {  // "4:cpu,cpuacct:/path" in v1, "0::/path" in v2
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    for (const fs::path& hierarchy : hierarchies(mounted, line.substr(first + 1, second - first - 1))) {
      const CoreQuota found = tightest(hierarchy, line.substr(second + 1));
      if (found.cores < quota.cores) quota = found;
    }
  }
  return quota;
}

}  // namespace nanotron::comm
