#pragma once

// A rank that computed or remembered wrongly: the run names it and its host, and leaves the host to the job script in
// <output_dir>/excluded_hosts, a line each: <host> <time> step <n>: <reason>. What is excluded stays excluded until the
// file is removed.

#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::trainer {

inline constexpr const char* excluded_hosts_file = "excluded_hosts";

struct HardwareFault {
  std::vector<int> ranks;  // of the world; empty: not known
  std::int64_t step = 0;
  std::string what{}, expected{}, found{};
};

/// Rank 0 writes the hosts of the ranks into the file, but not most of several: so many do not fail at once. What was
/// done, as advice. Collective, with the same fault.
std::string exclude_hosts(const HardwareFault& fault, const deck::Config& config, comm::ProcessGrid& grid);

/// The same, then Error(system_error), which names ranks and hosts.
[[noreturn]] void end_for_hardware(const HardwareFault& fault, const deck::Config& config, comm::ProcessGrid& grid);

/// A warning names the hosts of this run that the file excludes: a job that no script submitted may have them.
void warn_of_excluded_hosts(const deck::Config& config, const comm::ProcessGrid& grid, Log& log);

/// Ranks of the world where it is so, ascending, on every rank. Collective.
std::vector<int> ranks_where(bool is_so, comm::Group& world);

/// The first `most` of them and how many there are, without a list of all ranks. Collective.
struct FoundRanks {
  std::vector<int> ranks;
  std::size_t count = 0;
};
FoundRanks first_ranks_where(bool is_so, std::size_t most, comm::Group& world);

/// The text of one rank, on every rank. Collective.
std::string text_of_rank(const std::string& text, int rank, comm::Group& world);

}  // namespace nanotron::trainer
