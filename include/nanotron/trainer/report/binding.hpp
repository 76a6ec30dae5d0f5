#pragma once

// Where the ranks of a host may run: CPUs, their NUMA nodes, and the GPU of each. A bad binding halves the speed and
// breaks nothing, so it is reported, not refused.

#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/comm/process_grid.hpp"

namespace nanotron::trainer {

/// "0-3,8,10-11" as the kernel writes sets of CPUs, and back. What cannot be read is left out.
std::set<int> cpus_in(const std::string& list);
std::string cpus_text(const std::set<int>& cpus);

struct HostCpus {
  struct NumaNode {
    int number = 0;  // the kernel's
    std::set<int> cpus;
  };
  std::set<int> usable;  // that processes of the host, or of the container, may be given
  std::vector<NumaNode> numa;
};
HostCpus host_cpus(const std::filesystem::path& devices = "/sys/devices/system",
                   const std::filesystem::path& groups = "/sys/fs/cgroup");

/// NUMA node of the PCI device of this bus id; -1 where the kernel does not say.
int numa_of_device(std::string bus_id, const std::filesystem::path& devices = "/sys/bus/pci/devices");

struct RankBinding {
  int rank = 0;
  std::set<int> cpus;  // of its affinity mask
  std::string gpu{};   // bus id; empty: none
  int gpu_numa = -1;
};

/// What is wrong with the ranks of one host, a sentence each: ranks that share CPUs while others are free, ranks that
/// may run on several NUMA nodes where there is a rank for each, a GPU of several ranks, a GPU of another NUMA node
/// than its rank.
std::vector<std::string> binding_problems(std::span<const RankBinding> ranks, const HostCpus& host);

/// The binding of the ranks beside rank 0 as a line of the log, and a warning for each problem of some hosts.
/// Collective.
void check_binding(comm::ProcessGrid& grid, Log& log);

}  // namespace nanotron::trainer
