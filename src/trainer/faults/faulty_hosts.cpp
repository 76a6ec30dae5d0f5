#include "faulty_hosts.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <filesystem>
#include <set>
#include <sstream>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/io/files/text_file.hpp"

namespace nanotron::trainer {
namespace {

std::filesystem::path file_of(const deck::Config& config) {
  return std::filesystem::path(config.run.output_dir) / excluded_hosts_file;
}

std::string without_domain(const std::string& host) { return host.substr(0, host.find('.')); }

std::string excluded_hosts_text(const deck::Config& config, Log& log) {
  try {
    return files::text_of(file_of(config)).value_or("");
  } catch (const Error& error) {
    log.warn("the list of excluded hosts cannot be read: {}", reason(error));
    return "";
  }
}

}  // namespace

void warn_of_excluded_hosts(const deck::Config& config, const comm::ProcessGrid& grid, Log& log) {
  if (!log.is_writer()) return;
  std::set<std::string> excluded, here;
  std::istringstream file(excluded_hosts_text(config, log));
  for (std::string line; std::getline(file, line);) excluded.insert(without_domain(line.substr(0, line.find(' '))));
  for (const std::string& host : grid.hosts().names())
    if (excluded.contains(without_domain(host))) here.insert(host);
  if (here.empty()) return;
  log.warn(
      "{} lists hosts of this run as faulty: {}; exclude them when you submit, or remove the lines when "
      "they are repaired",
      file_of(config).string(), fmt::join(here, ", "));
}

std::string exclude_hosts(const HardwareFault& fault, const deck::Config& config, comm::ProcessGrid& grid) {
  const auto all = static_cast<std::size_t>(grid.hosts().hosts());
  std::set<std::string> hosts;
  for (const int r : fault.ranks) hosts.insert(grid.hosts()[static_cast<std::size_t>(r)]);
  if (hosts.empty()) return "the faulty host is not known, so none is excluded: test the hosts before the next start";
  if (all > 1 && 2 * hosts.size() > all)
    return "none is excluded, since it is unlikely that so many hosts fail at once: test them before the next start";
  std::int64_t written = 1;
  if (grid.world().rank() == 0) {
    std::string lines;
    for (const std::string& host : hosts) {
      lines += fmt::format("{} {:%Y-%m-%dT%H:%M:%SZ} step {}: {}\n", host, fmt::gmtime(std::time(nullptr)), fault.step,
                           fault.what);
    }
    written = io::append_text(file_of(config), lines) == 0 ? 1 : 0;
  }
  NANOTRON_CHECK_MPI(MPI_Bcast(&written, 1, MPI_INT64_T, 0, grid.world().mpi()));
  const std::string path = file_of(config).string();
  return written == 1 ? fmt::format(
                            "{} excludes it from the job's next start, which resumes from the last checkpoint; "
                            "remove the line when the host is repaired",
                            path)
                      : fmt::format("{} cannot be written: exclude the host by hand and start again", path);
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

FoundRanks first_ranks_where(bool is_so, std::size_t most, comm::Group& world) {
  FoundRanks found;
  int count = is_so ? 1 : 0, last = -1;
  NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &count, 1, MPI_INT, MPI_SUM, world.mpi()));
  found.count = static_cast<std::size_t>(count);
  while (found.ranks.size() < std::min(most, found.count)) {
    int next = is_so && world.rank() > last ? world.rank() : INT_MAX;
    NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &next, 1, MPI_INT, MPI_MIN, world.mpi()));
    found.ranks.push_back(last = next);
  }
  return found;
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
  const std::string who = named.empty() ? "an unknown rank" : fmt::format("{}", fmt::join(named, ", "));
  fail(ExitCode::system_error, {.what = fmt::format("step {}: {} on {}", fault.step, fault.what, who),
                                .expected = fault.expected,
                                .found = fault.found,
                                .where = who,
                                .change = exclude_hosts(fault, config, grid)});
}

}  // namespace nanotron::trainer
