#include "nanotron/comm/limits/limits.hpp"

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <system_error>
#include <vector>

namespace nanotron::comm {
namespace {

namespace fs = std::filesystem;

// Where the hierarchy of these controllers may be mounted; empty if it lacks the one that is wanted.
std::vector<fs::path> hierarchies(const fs::path& mounted, const std::string& controllers, const std::string& wanted) {
  if (controllers.empty()) return {mounted};
  const bool has_it = ("," + controllers + ",").find("," + wanted + ",") != controllers.npos;
  if (!has_it) return {};
  return controllers == wanted ? std::vector<fs::path>{mounted / wanted}
                               : std::vector<fs::path>{mounted / controllers, mounted / wanted};
}

// Folders of the control group of this process (listed in `membership`) and of its ancestors, from the innermost to
// the one where the hierarchy is mounted, below the folder `mounted`; of version 2, and of the version 1 that has this
// controller.
std::vector<fs::path> control_groups(const fs::path& membership, const fs::path& mounted,
                                     const std::string& controller) {
  std::vector<fs::path> groups;
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);) {  // "4:cpu,cpuacct:/path" in v1, "0::/path" in v2
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string path = line.substr(second + 1);
    for (const fs::path& hierarchy : hierarchies(mounted, line.substr(first + 1, second - first - 1), controller)) {
      std::error_code ignored;
      fs::path group = (hierarchy / fs::path(path).relative_path()).lexically_normal();
      // In a container the path may be the host's name for the group that is mounted as the root.
      if (path.find("..") != path.npos || !fs::is_directory(group, ignored)) group = hierarchy;
      for (;; group = group.parent_path()) {
        groups.push_back(group.has_filename() ? group : group.parent_path());
        if (group == hierarchy || groups.back() == hierarchy || !group.has_relative_path()) break;
      }
    }
  }
  return groups;
}

// Equal for processes that share the group; 0 where there is none.
std::uint64_t id_of_group(const fs::path& group) {
  struct stat status {};
  return ::stat(group.c_str(), &status) == 0 ? status.st_ino : 0;
}

// quota / period in cores. The quota is "max" (v2) or -1 (v1) where there is no limit.
double cores_of(const fs::path& group) {
  double quota = 0.0, period = 0.0;
  if (!(std::ifstream(group / "cpu.max") >> quota >> period)) {
    std::ifstream(group / "cpu.cfs_quota_us") >> quota;
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  return quota > 0.0 && period > 0.0 ? quota / period : std::numeric_limits<double>::infinity();
}

}  // namespace

CoreQuota core_quota(const fs::path& membership, const fs::path& mounted) {
  CoreQuota quota;
  for (const fs::path& group : control_groups(membership, mounted, "cpu")) {
    if (const double cores = cores_of(group); cores < quota.cores) quota = {cores, id_of_group(group)};
  }
  return quota;
}

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();

std::uint64_t host_bytes(const fs::path& meminfo) {
  std::ifstream file(meminfo);
  for (std::string word; file >> word;) {
    if (std::uint64_t kib = 0; word == "MemTotal:" && file >> kib) return kib * 1024;
  }
  return none;
}

std::uint64_t bytes_of(const fs::path& group) {
  for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
    if (std::uint64_t bytes = 0; std::ifstream(group / name) >> bytes) return bytes;
  }
  return none;
}

}  // namespace

std::vector<MemoryLimit> memory_limits(const fs::path& meminfo, const fs::path& membership, const fs::path& mounted) {
  std::vector<MemoryLimit> limits;
  const std::uint64_t host = host_bytes(meminfo);
  if (host != none) limits.push_back({host, 0, "the host"});
  for (const fs::path& group : control_groups(membership, mounted, "memory")) {
    if (const std::uint64_t bytes = bytes_of(group); bytes < host)
      limits.push_back({bytes, id_of_group(group), "the control group " + group.string()});
  }
  return limits;
}

}  // namespace nanotron::comm
