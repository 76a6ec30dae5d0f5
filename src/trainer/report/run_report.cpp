#include "nanotron/trainer/report/run_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::trainer {
namespace {

// Of one line over the ranks.
struct Spread {
  double mean = 0.0, min = 0.0, max = 0.0;
  std::size_t slowest = 0, fastest = 0;
};

Spread spread_of(const std::vector<double>& by_rank) {
  Spread s;
  s.slowest = static_cast<std::size_t>(std::ranges::max_element(by_rank) - by_rank.begin());
  s.fastest = static_cast<std::size_t>(std::ranges::min_element(by_rank) - by_rank.begin());
  s.max = by_rank[s.slowest];
  s.min = by_rank[s.fastest];
  for (const double seconds : by_rank) s.mean += seconds / static_cast<double>(by_rank.size());
  return s;
}

std::string row_of(const std::string& label, const Spread& s, double total) {
  return fmt::format("  {:<24}{:>12.3f}{:>12.3f}{:>7}{:>12.3f}{:>7}{:>8.1f} %\n", label, s.mean, s.min, s.fastest,
                     s.max, s.slowest, total > 0.0 ? 100.0 * s.mean / total : 0.0);
}

// What the shares of a run suggest, the largest loss first; empty where nothing stands out.
struct Advice {
  double share;  // of the time
  std::string text;
};

std::string first_advice(const std::map<std::string, double>& share, double imbalance, const std::string& slowest) {
  const auto of = [&](const char* label) {
    const auto found = share.find(label);
    return found == share.end() ? 0.0 : found->second;
  };
  const std::array all{
      Advice{of("read tokens") - 0.02, "a faster file system for the token file, or one that is local to the node"},
      Advice{of("checkpoints") - 0.05, "fewer checkpoints or copies (checkpoint%every_steps, neighbour_every_steps)"},
      Advice{of("validation") - 0.1,
             "fewer validations (data%validation_every) or less data for each (data%validation_batches)"},
      Advice{of("pipeline wait") - 0.1,
             "more micro-batches per step (data%global_batch_size / data%micro_batch_size), or a "
             "schedule with a smaller bubble (parallel%pp_schedule)"},
      Advice{of("tp communication") - 0.2, "a smaller parallel%tp, inside a node; parallel%tp_overlap_chunks"},
      Advice{of("cp communication") - 0.2, "a smaller parallel%cp"},
      Advice{of("ep communication") - 0.2, "a smaller parallel%ep, inside a node"},
      Advice{of("dp communication") - 0.15,
             "more tokens per rank per step (data%global_batch_size), or parallel%compression"},
      Advice{imbalance - 0.1,
             fmt::format("host {}, whose ranks compute longest: exclude it, or check its clocks and other "
                         "load on it",
                         slowest)}};
  const Advice& worst = *std::ranges::max_element(all, {}, &Advice::share);
  return worst.share > 0.0 ? worst.text : "";
}

// "energy measured: 0.1234 kWh, 456 W on average (processors and memory of the hosts)"; empty where none was measured.
std::string energy_text(const Energy& energy, double seconds) {
  const double joules = energy.processors + energy.gpus;
  if (joules <= 0.0 || seconds <= 0.0) return "";
  const double gpus = 100.0 * energy.gpus / joules;
  return fmt::format("\nenergy measured: {:.4g} kWh, {:.4g} W on average ({})", joules / 3.6e6, joules / seconds,
                     energy.gpus == 0.0         ? "processors and memory of the hosts"
                     : energy.processors == 0.0 ? "GPUs"
                                                : fmt::format("GPUs {:.1f} %, the rest processors and memory of the "
                                                              "hosts",
                                                              gpus));
}

}  // namespace

std::vector<RankPhases> gather_phases(Timers& timers, comm::ProcessGrid& grid) {
  const std::vector<double> mine = timers.phase_seconds();
  const comm::Group& world = grid.world();
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<double> all(world.rank() == 0 ? mine.size() * ranks : 0);
  NANOTRON_CHECK_MPI(MPI_Gather(mine.data(), static_cast<int>(mine.size()), MPI_DOUBLE, all.data(),
                                static_cast<int>(mine.size()), MPI_DOUBLE, 0, world.mpi()));
  std::vector<RankPhases> gathered;
  for (std::size_t r = 0; world.rank() == 0 && r < ranks; ++r) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(r * mine.size());
    gathered.push_back({{first, first + static_cast<std::ptrdiff_t>(mine.size())}, grid.hosts()[r]});
  }
  return gathered;
}

Energy gather_energy(EnergyMeter& meter, comm::ProcessGrid& grid) {
  const comm::Group& world = grid.world();
  std::string mine;
  for (const EnergyReading& r : meter.read()) mine += fmt::format("{}\t{}\n", r.meter, r.joules);
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<int> lengths(ranks), begins(ranks + 1, 0);
  const int length = static_cast<int>(mine.size());
  NANOTRON_CHECK_MPI(MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, world.mpi()));
  std::partial_sum(lengths.begin(), lengths.end(), begins.begin() + 1);
  std::string all(world.rank() == 0 ? static_cast<std::size_t>(begins.back()) : 0, '\0');
  NANOTRON_CHECK_MPI(
      MPI_Gatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), begins.data(), MPI_CHAR, 0, world.mpi()));
  std::map<std::pair<std::string, std::string>, double> meters;  // by host and name
  for (std::size_t r = 0; world.rank() == 0 && r < ranks; ++r) {
    std::istringstream lines(all.substr(static_cast<std::size_t>(begins[r]), static_cast<std::size_t>(lengths[r])));
    std::string name;
    for (double joules = 0.0; std::getline(lines, name, '\t') && lines >> joules >> std::ws;) {
      double& of_meter = meters[{grid.hosts()[r], name}];
      of_meter = std::max(of_meter, joules);
    }
  }
  Energy sum;
  for (const auto& [meter_of_host, joules] : meters) {
    (EnergyReading{meter_of_host.second}.is_gpu() ? sum.gpus : sum.processors) += joules;
  }
  return sum;
}

std::string run_report(const RunTotals& totals, const std::vector<RankPhases>& ranks) {
  if (ranks.empty() || totals.steps == 0) return "";
  std::set<std::string> hosts;
  for (const RankPhases& rank : ranks) hosts.insert(rank.host);
  std::string text = fmt::format(
      "where the time went: {} steps in {:.1f} s, {} rank{} on {} host{}; seconds of a rank\n", totals.steps,
      totals.seconds, ranks.size(), ranks.size() == 1 ? "" : "s", hosts.size(), hosts.size() == 1 ? "" : "s");
  text +=
      fmt::format("  {:<24}{:>12}{:>12}{:>7}{:>12}{:>7}{:>10}\n", "", "mean", "min", "rank", "max", "rank", "share");
  std::map<std::string, double> share;
  std::vector<double> computing(ranks.size(), 0.0), rest(ranks.size(), totals.seconds);
  std::size_t phase = 0;
  for (const PhaseLine& line : phase_lines()) {
    std::vector<double> seconds(ranks.size(), 0.0);
    for (std::size_t i = 0; i < line.phases.size(); ++i, ++phase) {
      for (std::size_t r = 0; r < ranks.size(); ++r) seconds[r] += ranks[r].seconds[phase];
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      rest[r] -= seconds[r];
      if (line.kind == PhaseKind::computing) computing[r] += seconds[r];
    }
    const Spread spread = spread_of(seconds);
    if (spread.max <= 0.0) continue;
    share[line.label] = totals.seconds > 0.0 ? spread.mean / totals.seconds : 0.0;
    text += row_of(line.label, spread, totals.seconds);
  }
  text += row_of("outside of steps", spread_of(rest), totals.seconds);

  const Spread of_computing = spread_of(computing);
  const double imbalance = of_computing.mean > 0.0 ? of_computing.max / of_computing.mean - 1.0 : 0.0;
  if (ranks.size() > 1) {
    text += fmt::format("load imbalance of computing: {:.1f} % (rank {} on {} takes longest)\n", 100.0 * imbalance,
                        of_computing.slowest, ranks[of_computing.slowest].host);
  }
  const double per_second = totals.batches / totals.seconds;
  text += fmt::format("{:.4g} tokens, {:.4g} tokens/s, {:.1f} % of GEMM peak", totals.cost.tokens * totals.batches,
                      totals.cost.tokens * per_second, 100.0 * totals.cost.flops * per_second / totals.cost.gemm_peak);
  if (totals.cost.stated_peak > 0.0) {
    text += fmt::format(", mfu {:.1f} %", 100.0 * totals.cost.flops * per_second / totals.cost.stated_peak);
  }
  text += fmt::format("; {:.4g} node-hours", totals.seconds / 3600.0 * static_cast<double>(hosts.size()));
  text += energy_text(totals.energy, totals.seconds);
  const std::string advice = first_advice(share, imbalance, ranks[of_computing.slowest].host);
  if (!advice.empty()) text += fmt::format("\nto speed up, first: {}", advice);
  return text;
}

namespace {

// What the groups of context parallelism moved, which depends on the documents; empty without any.
std::string context_traffic_text(const RunTotals& totals, comm::ProcessGrid& grid) {
  if (grid.shape().cp == 1 || totals.steps == 0) return "";
  std::int64_t bytes = 0, calls = 0;
  for (comm::Group* group : {&grid.cp(), &grid.cp_all_to_all(), &grid.cp_ring()}) {
    bytes += static_cast<std::int64_t>(group->traffic().bytes);
    calls += static_cast<std::int64_t>(group->traffic().calls);
  }
  const double each = static_cast<double>(totals.steps) * grid.shape().size();
  return fmt::format("context parallelism: {:.4g} MiB in {:.4g} operations for each rank and step",
                     static_cast<double>(comm::sum(grid.world(), bytes)) / each / 1048576.0,
                     static_cast<double>(comm::sum(grid.world(), calls)) / each);
}

}  // namespace

void report_times(const deck::Config& config, Timers& timers, const RunTotals& totals, comm::ProcessGrid& grid,
                  Log& log) {
  if (config.output.timers) log.summary("{}", timers.table(totals.seconds));
  const std::string report = run_report(totals, gather_phases(timers, grid));
  if (!report.empty()) log.info("{}", report);
  const std::string context = context_traffic_text(totals, grid);
  if (!context.empty()) log.info("{}", context);
}

}  // namespace nanotron::trainer
