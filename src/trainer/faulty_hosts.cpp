#include "nanotron/trainer/faulty_hosts.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>

#include "nanotron/base/error.hpp"

namespace nanotron::trainer {
namespace {

std::filesystem::path file_of(const deck::Config& config) {
  return std::filesystem::path(config.run.output_dir) / excluded_hosts_file;
}

}  // namespace

bool exclude_hosts(const HardwareFault& fault, const deck::Config& config, comm::ProcessGrid& grid) {
  std::int64_t written = 1;
  if (grid.world().rank() == 0) {
    std::set<std::string> hosts;
    for (const int r : fault.ranks) hosts.insert(grid.hosts()[static_cast<std::size_t>(r)]);
    std::ofstream file(file_of(config), std::ios::app);
    for (const std::string& host : hosts) {
      file << fmt::format("{} {:%Y-%m-%dT%H:%M:%SZ} step {}: {}\n", host, fmt::gmtime(std::time(nullptr)), fault.step,
                          fault.what);
    }
    file.close();
    written = file.fail() ? 0 : 1;
  }
  NANOTRON_CHECK_MPI(MPI_Bcast(&written, 1, MPI_INT64_T, 0, grid.world().mpi()));
  return written == 1;
}

std::vector<int> ranks_where(bool is_so, comm::Group& world) {
  const int mine = is_so ? 1 : 0;
  std::vector<int> all(static_cast<std::size_t>(world.size()));
  NANOTRON_CHECK_MPI(MPI_Allgather(&mine, 1, MPI_INT, all.data(), 1, MPI_INT, world.mpi()));
  std::vector<int> ranks;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r] != 0) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

std::string text_of_rank(const std::string& text, int rank, comm::Group& world) {
  auto size = static_cast<int>(text.size());
  NANOTRON_CHECK_MPI(MPI_Bcast(&size, 1, MPI_INT, rank, world.mpi()));
  std::string all = text;
  all.resize(static_cast<std::size_t>(size));
  NANOTRON_CHECK_MPI(MPI_Bcast(all.data(), size, MPI_CHAR, rank, world.mpi()));
  return all;
}

void end_for_hardware(const HardwareFault& fault, const deck::Config& config, comm::ProcessGrid& grid) {
  std::vector<std::string> named;
  for (const int r : fault.ranks)
    named.push_back(fmt::format("rank {} on {}", r, grid.hosts()[static_cast<std::size_t>(r)]));
  const std::string path = file_of(config).string(), who = fmt::format("{}", fmt::join(named, ", "));
  const std::string excluded =
      exclude_hosts(fault, config, grid)
          ? fmt::format(
                "{} excludes it from the job's next start, which goes on from the last checkpoint; take the "
                "line out when the host is repaired",
                path)
          : fmt::format("{} cannot be written: exclude the host by hand and start again", path);
  fail(ExitCode::system_error, {.what = fmt::format("step {}: {} on {}", fault.step, fault.what, who),
                                .expected = fault.expected,
                                .found = fault.found,
                                .where = who,
                                .change = excluded});
}

}  // namespace nanotron::trainer
