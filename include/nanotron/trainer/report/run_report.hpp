#pragma once

// Where the time of a run went, over all ranks: printed when it ends.

#include <string>
#include <vector>

#include "nanotron/base/energy_meter.hpp"
#include "nanotron/base/timer.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/trainer/report/progress.hpp"
#include "nanotron/trainer/state/run_phases.hpp"

namespace nanotron::trainer {

/// The phases of one rank, and the host that it ran on.
struct RankPhases {
  std::vector<double> seconds;  // as run_phases
  std::string host;
};

/// Joules used by processors and memory of the hosts, and by the GPUs of the ranks; 0: not known.
struct Energy {
  double processors = 0.0, gpus = 0.0;
};

/// Totals of the run, by which the report divides.
struct RunTotals {
  std::int64_t steps = 0;
  double batches = 0.0;  // samples / global_batch_size: less than steps with a batch-size ramp
  double seconds = 0.0;  // of the loop, on this rank
  StepCost cost;
  Energy energy{};
};

/// Energy measured by the meters of all hosts since `meter` was made (base/energy_meter.hpp), each meter once. On rank
/// 0; zero on other ranks, or if no meter can be read. Collective over the world.
Energy gather_energy(EnergyMeter& meter, comm::ProcessGrid& grid);

/// Phases of all ranks, on rank 0; empty on other ranks. Collective over the world.
std::vector<RankPhases> gather_phases(Timers& timers, comm::ProcessGrid& grid);

/// A table of phases, the slowest host, rates, node-hours, measured energy and what to change first.
std::string run_report(const RunTotals& totals, const std::vector<RankPhases>& ranks);

/// Writes that report to the log, below the timers' table if the deck enables it. Collective over the world.
void report_times(const deck::Config& config, Timers& timers, const RunTotals& totals, comm::ProcessGrid& grid,
                  Log& log);

}  // namespace nanotron::trainer
