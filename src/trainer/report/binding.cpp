#include "nanotron/trainer/report/binding.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "nanotron/base/error.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/base/rank_ranges.hpp"
#include "nanotron/deck/namelist/source_text.hpp"
#include "nanotron/tensor/device.hpp"
#include "trainer/faults/faulty_hosts.hpp"

namespace nanotron::trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_sets = 16, shown_ranks = 8, shown_hosts = 4;
constexpr int max_cpus = 8 * static_cast<int>(max_sets * sizeof(cpu_set_t));

// What a rank tells the others of its host.
struct Message {
  int rank = 0, gpu_numa = -1;
  std::array<char, 32> gpu{};
  std::array<cpu_set_t, max_sets> cpus{};
};

std::string line_of(const fs::path& file) {
  std::string line;
  std::ifstream in(file);
  std::getline(in, line);
  return line;
}

std::set<int> common(const std::set<int>& a, const std::set<int>& b) {
  std::set<int> both;
  std::ranges::set_intersection(a, b, std::inserter(both, both.end()));
  return both;
}

std::vector<int> numa_of(const std::set<int>& cpus, const HostCpus& host) {
  std::vector<int> numbers;
  for (const HostCpus::NumaNode& node : host.numa)
    if (!common(node.cpus, cpus).empty()) numbers.push_back(node.number);
  return numbers;
}

// Only where ranks could have been spread over more CPUs.
void find_shared_cpus(std::span<const RankBinding> ranks, const HostCpus& host, std::vector<std::string>& problems) {
  std::map<std::set<int>, std::vector<int>> sharing;
  std::set<int> all;
  for (const RankBinding& r : ranks) {
    sharing[r.cpus].push_back(r.rank);
    all.insert(r.cpus.begin(), r.cpus.end());
  }
  const std::size_t usable = std::max(host.usable.size(), all.size());
  for (const auto& [cpus, crowd] : sharing) {
    if (crowd.size() <= cpus.size() || cpus.size() == usable) continue;
    problems.push_back(
        fmt::format("ranks {} share CPU{} {} of {} CPUs: srun --cpus-per-task and --cpu-bind=cores, or mpirun "
                    "--bind-to core, give each "
                    "its own",
                    ranks_text(crowd), cpus.size() == 1 ? "" : "s", cpus_text(cpus), usable));
  }
}

void find_unbound_ranks(std::span<const RankBinding> ranks, const HostCpus& host, std::vector<std::string>& problems) {
  std::vector<int> wandering;
  for (const RankBinding& r : ranks)
    if (numa_of(r.cpus, host).size() > 1) wandering.push_back(r.rank);
  if (wandering.empty() || ranks.size() < host.numa.size()) return;
  problems.push_back(
      fmt::format("ranks {} may run on several of the {} NUMA nodes, away from their memory: srun --cpu-bind=cores, or "
                  "mpirun --bind-to "
                  "core (--map-by numa), keeps each on one",
                  ranks_text(wandering), host.numa.size()));
}

void find_gpu_problems(std::span<const RankBinding> ranks, const HostCpus& host, std::vector<std::string>& problems) {
  std::map<std::string, std::vector<int>> sharing;
  for (const RankBinding& r : ranks) {
    if (r.gpu.empty()) continue;
    sharing[r.gpu].push_back(r.rank);
    const std::vector<int> own = numa_of(r.cpus, host);
    if (r.gpu_numa < 0 || own.empty() || std::ranges::find(own, r.gpu_numa) != own.end()) continue;
    problems.push_back(fmt::format(
        "rank {} runs on NUMA node {}, its GPU {} is at NUMA node {}: srun --gpu-bind=closest, or another --cpu-bind",
        r.rank, fmt::join(own, ", "), r.gpu, r.gpu_numa));
  }
  for (const auto& [gpu, crowd] : sharing) {
    if (crowd.size() < 2) continue;
    problems.push_back(fmt::format("ranks {} share the GPU {}: one rank for each GPU is faster, and NCCL needs it",
                                   ranks_text(crowd), gpu));
  }
}

Message message_of(int rank) {
  Message mine;
  mine.rank = rank;
  const std::string gpu = device_bus_id();
  gpu.copy(mine.gpu.data(), mine.gpu.size() - 1);
  mine.gpu_numa = numa_of_device(gpu);
  if (sched_getaffinity(0, sizeof mine.cpus, mine.cpus.data()) != 0) mine.cpus = {};
  return mine;
}

RankBinding binding_of(const Message& message) {
  RankBinding binding{.rank = message.rank, .cpus = {}, .gpu = message.gpu.data(), .gpu_numa = message.gpu_numa};
  for (int cpu = 0; cpu < max_cpus; ++cpu)
    if (CPU_ISSET_S(static_cast<std::size_t>(cpu), sizeof message.cpus, message.cpus.data())) binding.cpus.insert(cpu);
  return binding;
}

std::vector<RankBinding> bindings_on_host(const comm::Communicator& host, int rank) {
  const Message mine = message_of(rank);
  std::vector<Message> all(static_cast<std::size_t>(host.size()));
  NANOTRON_CHECK_MPI(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, host.get()));
  std::vector<RankBinding> bindings;
  for (const Message& message : all) bindings.push_back(binding_of(message));
  return bindings;
}

std::string text_of(std::span<const RankBinding> ranks) {
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), shown_ranks); ++i) {
    text += fmt::format("{}rank {} on CPUs {}{}", i == 0 ? "" : "; ", ranks[i].rank, cpus_text(ranks[i].cpus),
                        ranks[i].gpu.empty() ? "" : ", GPU " + ranks[i].gpu);
  }
  return text + (ranks.size() > shown_ranks ? "; ..." : "");
}

}  // namespace

std::set<int> cpus_in(const std::string& list) {
  std::set<int> cpus;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0, last = 0;
    const int read = std::sscanf(part.c_str(), "%d-%d", &first, &last);
    if (read == 1) last = first;
    if (read < 1 || first < 0 || last >= max_cpus) continue;
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return cpus;
}

std::string cpus_text(const std::set<int>& cpus) {
  return cpus.empty() ? "unknown" : ranks_text({cpus.begin(), cpus.end()});
}

HostCpus host_cpus(const fs::path& devices, const fs::path& groups) {
  HostCpus host{.usable = cpus_in(line_of(devices / "cpu/online")), .numa = {}};
  for (const char* file : {"cpuset.cpus.effective", "cpuset/cpuset.effective_cpus"}) {
    if (const std::set<int> allowed = cpus_in(line_of(groups / file)); !allowed.empty())
      host.usable = common(host.usable, allowed);
  }
  std::error_code error;
  auto entry = fs::directory_iterator(devices / "node", error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    int number = -1;
    if (std::sscanf(entry->path().filename().c_str(), "node%d", &number) != 1) continue;
    const std::set<int> cpus = common(cpus_in(line_of(entry->path() / "cpulist")), host.usable);
    if (!cpus.empty()) host.numa.push_back({number, cpus});
  }
  std::ranges::sort(host.numa, {}, &HostCpus::NumaNode::number);
  return host;
}

int numa_of_device(std::string bus_id, const fs::path& devices) {
  if (bus_id.empty()) return -1;
  bus_id = deck::to_lower(bus_id);
  if (bus_id.find(':') == 8) bus_id.erase(0, 4);  // the kernel writes four digits of the domain
  int number = -1;
  std::ifstream(devices / bus_id / "numa_node") >> number;
  return number;
}

std::vector<std::string> binding_problems(std::span<const RankBinding> ranks, const HostCpus& host) {
  std::vector<std::string> problems;
  find_shared_cpus(ranks, host, problems);
  find_unbound_ranks(ranks, host, problems);
  find_gpu_problems(ranks, host, problems);
  return problems;
}

void check_binding(comm::ProcessGrid& grid, Log& log) {
  comm::Group& world = grid.world();
  const std::vector<RankBinding> here = bindings_on_host(grid.node(), world.rank());
  log.info("binding: {}", text_of(here));
  const bool is_writer = here.front().rank == world.rank();  // one rank of each host
  std::string text;
  if (is_writer) {
    for (const std::string& problem : binding_problems(here, host_cpus()))
      text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", host_name(), problem);
  }
  const FoundRanks hosts = first_ranks_where(!text.empty(), shown_hosts, world);
  for (const int rank : hosts.ranks) log.warn("binding of {}", text_of_rank(text, rank, world));
  if (hosts.count > hosts.ranks.size()) log.warn("... and of {} more hosts", hosts.count - hosts.ranks.size());
}

}  // namespace nanotron::trainer
