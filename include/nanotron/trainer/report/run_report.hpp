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

/// Of one rank: seconds and the host that it ran on.
struct RankPhases {
  std::vector<double> seconds;  // as run_phases
  std::string host;
};

/// Joules that processors and memory of the hosts, and GPUs of the ranks, took; 0: not known.
struct Energy {
  double processors = 0.0, gpus = 0.0;
};

/// What was done meanwhile.
struct RunTotals {
  std::int64_t steps = 0;
  double batches = 0.0;  // of global_batch_size, which steps of a batch-size ramp are less than
  double seconds = 0.0;  // of the loop, on this rank
  StepCost cost;
  Energy energy{};
};

/// What all hosts' meters say that was taken meanwhile (base/energy_meter.hpp), each meter once; on rank 0, elsewhere
/// and where no meter can be read zero. Collective over the world.
Energy gather_energy(EnergyMeter& meter, comm::ProcessGrid& grid);

/// Of all ranks; on rank 0, elsewhere empty. Collective over the world.
std::vector<RankPhases> gather_phases(Timers& timers, comm::ProcessGrid& grid);

/// A table of phases, the slowest host, rates, node-hours, measured energy and what to change first.
std::string run_report(const RunTotals& totals, const std::vector<RankPhases>& ranks);

/// Writes that report to the log, below the timers' table if the deck enables it. Collective over the world.
void report_times(const deck::Config& config, Timers& timers, const RunTotals& totals, comm::ProcessGrid& grid,
                  Log& log);

}  // namespace nanotron::trainer
