#include "nanotron/trainer/faults/stragglers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <type_traits>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/session/waiting.hpp"
#include "nanotron/tensor/tensor.hpp"
#include "nanotron/trainer/state/run_phases.hpp"

namespace nanotron::trainer {
namespace {

constexpr double slow = 1.5;  // times the median

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return 0.5 * (*middle + *std::max_element(values.begin(), middle));
}

std::vector<Straggler> slow_ranks(const std::vector<double>& computing, const std::vector<int>& stage_of_rank) {
  std::map<int, std::vector<double>> of_stage;
  for (std::size_t r = 0; r < computing.size(); ++r) of_stage[stage_of_rank[r]].push_back(computing[r]);
  std::map<int, double> median;
  for (const auto& [stage, seconds] : of_stage) median[stage] = median_of(seconds);
  std::vector<Straggler> found;
  for (std::size_t r = 0; r < computing.size(); ++r) {
    const double usual = median[stage_of_rank[r]];
    if (computing[r] >= slow * usual && computing[r] > usual)
      found.push_back({.rank = static_cast<int>(r), .seconds = computing[r], .median = usual});
  }
  std::ranges::sort(found,
                    [](const Straggler& a, const Straggler& b) { return a.seconds * b.median > b.seconds * a.median; });
  return found;
}

// Of this thread since it began: it could have run, and another one had its core. 0 where the system does not count,
// and of a rank whose time of computing is a GPU's.
double seconds_without_core() {
  if constexpr (!std::is_same_v<MemorySpace, Kokkos::HostSpace>) return 0.0;
  std::ifstream file("/proc/thread-self/schedstat");
  double ran = 0.0, waited = 0.0;
  return file >> ran >> waited ? 1e-9 * waited : 0.0;
}

std::vector<double> gather(double mine, comm::Group& world) {
  std::vector<double> all(world.rank() == 0 ? static_cast<std::size_t>(world.size()) : 0);
  NANOTRON_CHECK_MPI(MPI_Gather(&mine, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, 0, world.mpi()));
  return all;
}

}  // namespace

std::vector<Straggler> stragglers(const std::vector<double>& computing, const std::vector<double>& waited,
                                  const std::vector<int>& stage_of_rank) {
  std::vector<double> on_core = computing;
  for (std::size_t r = 0; r < on_core.size(); ++r) on_core[r] = std::max(0.0, on_core[r] - waited[r]);
  std::vector<Straggler> found = slow_ranks(on_core, stage_of_rank);
  if (!found.empty()) return found;
  found = slow_ranks(computing, stage_of_rank);
  for (Straggler& s : found) s.waited = waited[static_cast<std::size_t>(s.rank)];
  return found;
}

StragglerWatch::StragglerWatch(std::int64_t every, Timers& timers, comm::ProcessGrid& grid, Log& log)
    : every_(every), timers_(timers), grid_(grid), log_(log) {}

// The first step of a start makes what later steps use: it does not count.
void StragglerWatch::check(std::int64_t step) {
  if (every_ == 0 || grid_.world().size() == 1) return;
  const bool is_first = before_.empty();
  if (!is_first && step % every_ != 0) return;
  const std::vector<double> now = timers_.phase_seconds();
  std::vector<double> spent = now;
  for (std::size_t i = 0; i < before_.size(); ++i) spent[i] -= before_[i];
  before_ = now;
  const double waits = seconds_without_core(), waited = waits - std::exchange(waited_before_, waits);
  const std::int64_t first = std::exchange(since_, step) + 1;
  if (is_first || before_.empty()) return;
  const std::vector<double> computing = gather_computing(spent, grid_.world()), waiting = gather(waited, grid_.world());
  std::vector<int> stages;
  for (int r = 0; r < static_cast<int>(computing.size()); ++r) {
    stages.push_back(comm::coordinate_of(grid_.shape(), r).pp);
  }
  const std::vector<Straggler> slowest = stragglers(computing, waiting, stages);
  if (slowest.empty()) return;
  const Straggler& s = slowest.front();
  if (s.waited > 0.0 && comm::waits_asleep()) return;  // its cores have more ranks than one, as was said at the start
  log_.warn(
      "steps {} to {}: rank {} on {} computes {:.1f} times as long as other ranks with the same work ({:.3g} s, "
      "their median {:.3g} s){}: {}",
      first, step, s.rank, grid_.hosts()[static_cast<std::size_t>(s.rank)], s.seconds / s.median, s.seconds, s.median,
      slowest.size() > 1 ? fmt::format("; {} other ranks are slow too", slowest.size() - 1) : "",
      s.waited > 0.0 ? fmt::format("it waited {:.3g} s for a core used by other processes of its host", s.waited)
                     : "check its clocks, its temperature and other load on it, or exclude the host");
}

}  // namespace nanotron::trainer
