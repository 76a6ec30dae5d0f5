#include "control_groups.hpp"

#include <sys/stat.h>

#include <cstdint>
#include <fstream>
#include <system_error>

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

}  // namespace

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

std::uint64_t id_of_group(const fs::path& group) {
  struct stat status {};
  return ::stat(group.c_str(), &status) == 0 ? status.st_ino : 0;
}

}  // namespace nanotron::comm
