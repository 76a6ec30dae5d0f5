#include "nanotron/comm/limits/memory_limits.hpp"

#include <fstream>
#include <limits>

#include "control_groups.hpp"

namespace nanotron::comm {
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
