#include "start_report.hpp"

#include <fmt/format.h>

#include <vector>

#include "nanotron/base/error.hpp"

namespace nanotron::trainer {
namespace {

double in_kib(std::uint64_t bytes) { return static_cast<double>(bytes) / 1024.0; }

std::string row_of(const std::string& phase, const StartCost& first, const StartCost& other) {
  return fmt::format("  {:<20}{:>7}{:>10}{:>12.1f}{:>7}{:>10}{:>12.1f}{:>7}\n", phase, other.calls, other.messages,
                     in_kib(other.bytes), other.files, first.messages, in_kib(first.bytes), first.files);
}

}  // namespace

std::string start_table(std::span<const StartPhase> first, std::span<const StartPhase> others) {
  std::string text = fmt::format("  {:<20}{:>7}{:>10}{:>12}{:>7}{:>10}{:>12}{:>7}\n", "", "calls", "messages", "KiB",
                                 "files", "rank 0:", "KiB", "files");
  StartCost all_first, all_others;
  for (std::size_t i = 0; i < first.size(); ++i) {
    text += row_of(first[i].name, first[i].cost, others[i].cost);
    all_first += first[i].cost;
    all_others += others[i].cost;
  }
  return text + row_of("total", all_first, all_others);
}

std::string start_report(comm::Group& world) {
  const std::vector<StartPhase> mine = start_account().phases();
  std::vector<StartPhase> others = mine;
  const bool is_first = world.rank() == 0 && world.size() > 1;
  for (StartPhase& phase : others) {
    StartCost cost = is_first ? StartCost{} : phase.cost;
    NANOTRON_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &cost, 4, MPI_UINT64_T, MPI_MAX, world.mpi()));
    phase.cost = cost;
  }
  return "start: collective calls, messages, bytes of their results, and opened files, of the rank with most besides "
         "rank 0, and of rank 0\n" +
         start_table(mine, others);
}

}  // namespace nanotron::trainer
