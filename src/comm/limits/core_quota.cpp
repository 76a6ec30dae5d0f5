#include "nanotron/comm/limits/core_quota.hpp"

#include <fstream>
#include <limits>

#include "control_groups.hpp"

namespace nanotron::comm {
namespace {

namespace fs = std::filesystem;

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

}  // namespace nanotron::comm
