// ranks: 1 2
// The report at the end of a run: its sums, the rank it names, what it advises.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/watch/watched_groups.hpp"
#include "nanotron/trainer/report/run_report.hpp"
#include "support/temporary_folder.hpp"
#include "support/world.hpp"

namespace nanotron::trainer {
namespace {

std::size_t number_of(const std::string& name) {
  const std::vector<Phase> phases = run_phases();
  const auto found = std::ranges::find(phases, name, [](const Phase& phase) { return std::string(phase.name); });
  EXPECT_NE(found, phases.end()) << name;
  return static_cast<std::size_t>(found - phases.begin());
}

// Four ranks on two hosts: 10 s, of which forward takes 5, backward `backward`, the rest is told by `more`.
std::vector<RankPhases> four_ranks(double backward_of_last, const std::string& more = "", double seconds = 0.0) {
  std::vector<RankPhases> ranks(4, {std::vector<double>(run_phases().size(), 0.0), "node1"});
  for (std::size_t r = 0; r < 4; ++r) {
    ranks[r].seconds[number_of("forward")] = 4.0;
    ranks[r].seconds[number_of("backward")] = r == 3 ? backward_of_last : 2.0;
    if (!more.empty()) ranks[r].seconds[number_of(more)] = seconds;
    if (r > 1) ranks[r].host = "node2";
  }
  return ranks;
}

std::string report_of(const std::vector<RankPhases>& ranks) {
  return run_report({.steps = 5,
                     .batches = 5.0,
                     .seconds = 10.0,
                     .cost = {.tokens = 1000.0, .flops = 2e9, .gemm_peak = 2e9, .stated_peak = 4e9}},
                    ranks);
}

TEST(RunReport, AddsUpAndNamesTheSlowestRank) {
  const std::string text = report_of(four_ranks(5.0));
  const auto has = [&](const std::string& words) {
    EXPECT_NE(text.find(words), std::string::npos) << words << " is not in\n" << text;
  };
  has("5 steps in 10.0 s, 4 ranks on 2 hosts");
  has("mean         min   rank         max   rank     share\n");
  has("forward                        4.000       4.000      0       4.000      0    40.0 %");
  has("backward                       2.750       2.000      0       5.000      3    27.5 %");
  has("outside of steps               3.250       1.000      3       4.000      0    32.5 %");
  has("load imbalance of computing: 33.3 % (rank 3 on node2 takes longest)");
  has("5000 tokens, 500 tokens/s, 50.0 % of GEMM peak, mfu 25.0 %; 0.005556 node-hours");
  has("to speed up, first: host node2");
}

TEST(RunReport, SaysWhatEnergyWasMeasured) {
  const auto text = [](const Energy& energy) {
    return run_report({.steps = 5,
                       .batches = 5.0,
                       .seconds = 10.0,
                       .cost = {.tokens = 1.0, .flops = 1.0, .gemm_peak = 1.0},
                       .energy = energy},
                      four_ranks(2.0));
  };
  EXPECT_EQ(text({}).find("energy"), std::string::npos);
  EXPECT_NE(text({.processors = 3600.0})
                .find("energy measured: 0.001 kWh, 360 W on average (processors and memory of the hosts)"),
            std::string::npos);
  EXPECT_NE(text({.gpus = 7.2e6}).find("energy measured: 2 kWh, 7.2e+05 W on average (GPUs)"), std::string::npos);
  EXPECT_NE(text({.processors = 1e4, .gpus = 3e4}).find("(GPUs 75.0 %, the rest processors"), std::string::npos);
}

// The ranks of a host read the same meters.
TEST(RunReport, CountsTheMetersOfAHostOnce) {
  comm::Communicator world = comm::Communicator::duplicate(test::world());
  comm::ProcessGrid grid(world, {.tp = world.size()}, test::device_transport());
  const test::TemporaryFolder folder(test::world(), "powercap");
  const auto counts = [&](double microjoules) {
    MPI_Barrier(test::world());
    if (world.rank() == 0) {
      std::filesystem::create_directories(folder.path() / "intel-rapl:0");
      std::ofstream(folder.path() / "intel-rapl:0/name") << "package-0";
      std::ofstream(folder.path() / "intel-rapl:0/max_energy_range_uj") << 1e9;
      std::ofstream(folder.path() / "intel-rapl:0/energy_uj") << microjoules;
    }
    MPI_Barrier(test::world());
  };
  counts(1e6);
  EnergyMeter meter("", folder.path());
  counts(3.5e6);
  const Energy energy = gather_energy(meter, grid);
  EXPECT_EQ(energy.processors, world.rank() == 0 ? 2.5 : 0.0);
  EXPECT_EQ(energy.gpus, 0.0);
}

TEST(RunReport, AdvisesTheLargestLoss) {
  const auto advice = [&](const std::string& more) {
    const std::string text = report_of(four_ranks(2.0, more, 3.0));
    const std::size_t at = text.find("first: ");
    return at == std::string::npos ? "" : text.substr(at + 7);
  };
  EXPECT_EQ(advice(""), "");
  EXPECT_NE(advice("load tokens").find("file system"), std::string::npos);
  EXPECT_NE(advice("checkpoint").find("checkpoint%every_steps"), std::string::npos);
  EXPECT_NE(advice("validation").find("data%validation_every"), std::string::npos);
  EXPECT_NE(advice("pipeline wait").find("micro-batches"), std::string::npos);
  EXPECT_NE(advice("tp all_reduce").find("parallel%tp"), std::string::npos);
  EXPECT_NE(advice("dp wait and progress").find("parallel%compression"), std::string::npos);
}

TEST(RunReport, OperationsOfAGridAreTimed) {
  comm::Communicator world = comm::Communicator::duplicate(test::world());
  comm::ProcessGrid grid(world, {.tp = world.size()}, test::device_transport());
  Timers timers;
  timers.set_phases(run_phases());
  {
    const comm::TimedGroups timed(grid, timers);
    comm::sum(grid.tp(), 1.0);
    comm::barrier(grid.world());
  }
  comm::sum(grid.tp(), 1.0);
  const auto calls = [&](const std::string& name) {
    std::uint64_t n = 0;
    for (const TimerRow& row : timers.rows()) n += row.name == name ? row.calls : 0;
    return n;
  };
  const std::uint64_t of_each = world.size() > 1 ? 1 : 0;
  EXPECT_EQ(calls("tp host values"), of_each);
  EXPECT_EQ(calls("world host values"), of_each);
  const std::vector<RankPhases> ranks = gather_phases(timers, grid);
  ASSERT_EQ(ranks.size(), world.rank() == 0 ? static_cast<std::size_t>(world.size()) : 0);
  for (const RankPhases& rank : ranks) {
    EXPECT_EQ(rank.host, grid.hosts()[0]);
    EXPECT_EQ(rank.seconds[number_of("tp host values")] > 0.0, world.size() > 1);
    EXPECT_NEAR(std::accumulate(rank.seconds.begin(), rank.seconds.end(), 0.0),
                rank.seconds[number_of("tp host values")] + rank.seconds[number_of("world host values")], 1e-12);
  }
}

}  // namespace
}  // namespace nanotron::trainer
