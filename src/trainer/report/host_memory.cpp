#include "nanotron/trainer/report/host_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "nanotron/base/error.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/comm/communicator.hpp"
#include "trainer/faults/faulty_hosts.hpp"

namespace nanotron::trainer {
namespace {

double in_gib(std::uint64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

std::string name_of_limit(std::span<const comm::MemoryLimit> limits, std::uint64_t group) {
  const auto found = std::ranges::find(limits, group, &comm::MemoryLimit::group);
  return found == limits.end() ? "a control group" : found->name;
}

std::vector<MemoryNeed> needs_on_host(const MemoryNeed& mine, const comm::Communicator& host) {
  std::vector<MemoryNeed> all(static_cast<std::size_t>(host.size()));
  NANOTRON_CHECK_MPI(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, host.get()));
  return all;
}

}  // namespace

MemoryNeed memory_need(std::uint64_t certain, std::uint64_t besides, std::span<const comm::MemoryLimit> limits) {
  MemoryNeed need{.certain = certain, .possible = certain + besides};
  for (std::size_t i = 0; i < std::min(limits.size(), MemoryNeed::max_limits); ++i)
    need.limits[i] = {limits[i].bytes, limits[i].group};
  return need;
}

MemoryShortage memory_shortage(std::span<const MemoryNeed> ranks) {
  struct Total {
    std::uint64_t certain = 0, possible = 0, allowed = 0;
    int ranks = 0;
  };
  std::map<std::uint64_t, Total> totals;  // by group
  for (const MemoryNeed& need : ranks) {
    for (const MemoryNeed::Limit& limit : need.limits) {
      if (limit.bytes == 0) continue;
      Total& total = totals[limit.group];
      total.certain += need.certain;
      total.possible += need.possible;
      total.allowed = limit.bytes;
      ++total.ranks;
    }
  }
  MemoryShortage worst;
  const auto excess = [](const MemoryShortage& s) {
    return static_cast<double>(s.needed) / static_cast<double>(std::max<std::uint64_t>(s.allowed, 1));
  };
  for (const auto& [group, total] : totals) {
    if (total.possible <= total.allowed) continue;
    const bool is_certain = total.certain > total.allowed;
    const MemoryShortage found{is_certain ? total.certain : total.possible, total.allowed, group, total.ranks,
                               is_certain};
    if (worst.ranks == 0 || is_certain > worst.is_certain ||
        (is_certain == worst.is_certain && excess(found) > excess(worst)))
      worst = found;
  }
  return worst;
}

void check_host_memory(std::uint64_t certain, std::uint64_t besides, comm::ProcessGrid& grid, Log& log) {
  const std::vector<comm::MemoryLimit> limits = comm::memory_limits();
  const MemoryShortage found = memory_shortage(needs_on_host(memory_need(certain, besides, limits), grid.node()));
  const std::string need =
      fmt::format("{:.2f} GiB of {} rank{}", in_gib(found.needed), found.ranks, found.ranks == 1 ? "" : "s");
  comm::collectively(grid.world().mpi(), [&] {
    if (!found.is_certain) return;
    fail(ExitCode::deck_error,
         {.what = fmt::format("the ranks on {} need more memory than they are allowed", host_name()),
          .expected = fmt::format("at most {:.2f} GiB, the memory of {}", in_gib(found.allowed),
                                  name_of_limit(limits, found.group)),
          .found = need + " for a step",
          .change = "fewer ranks on a host, more memory for the job (sbatch --mem, the select of PBS), or a deck that "
                    "needs less: tp, pp, zero_stage, recompute, micro_batch_size (--plan shows the parts, also what "
                    "waits in host memory)"});
  });
  const std::vector<int> short_of_memory = first_ranks_where(found.ranks > 0, 1, grid.world()).ranks;
  if (short_of_memory.empty()) return;
  const std::string text = text_of_rank(
      fmt::format("{} may need {} while a checkpoint is written, {} has {:.2f} GiB: a rank that takes more is killed",
                  host_name(), need, name_of_limit(limits, found.group), in_gib(found.allowed)),
      short_of_memory.front(), grid.world());
  log.warn("{}", text);
}

}  // namespace nanotron::trainer
