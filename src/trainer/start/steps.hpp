#pragma once

// The steps of train(), in their order. Private to the folder; all functions are collective over the world of the grid.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/base/provenance.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/io/copies/neighbour_copies.hpp"
#include "nanotron/io/files/run_lock.hpp"
#include "nanotron/io/files/run_status.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/trainer/data/token_files.hpp"
#include "nanotron/trainer/data/training_stages.hpp"
#include "nanotron/trainer/hang/watchdog.hpp"
#include "nanotron/trainer/loop/stop_conditions.hpp"
#include "nanotron/trainer/report/progress.hpp"
#include "nanotron/trainer/start/train.hpp"
#include "trainer/report/rank_memory.hpp"

namespace nanotron::trainer {

/// What a run has before its device is measured. Later members use earlier ones.
struct PreparedRun {
  PreparedRun(const deck::Config& deck, MPI_Comm world, double began);

  double start;  // wall_seconds() at the start of the program
  deck::Config config;
  comm::ProcessGrid grid;
  Log log;
  std::vector<io::RunLock> locks;      // of the run's folder and its checkpoints'
  std::unique_ptr<Watchdog> watchdog;  // null: none
  std::optional<io::RunStatus> status;
  Provenance provenance;
  std::unique_ptr<TokenFiles> tokens;
  std::optional<TrainingStages> stages;
  std::vector<Loaders> loaders;                 // of each stage
  std::unique_ptr<io::NeighbourCopies> copies;  // null: none
};

/// Locks the folders, opens the log, describes the run in it, opens the data and chooses what is chosen by measurement.
std::unique_ptr<PreparedRun> prepare_run(const deck::Config& config, MPI_Comm world, const std::string& status,
                                         double start, LastWords& last_words);

/// GEMM rates of all ranks together, measured and stated; the GEMM algorithms of the deck are in use afterwards.
template <class T>
StepCost measure_peaks(const deck::Config& config, Device& device, comm::Group& world, Log& log);

/// Memory of this rank.
struct PlannedMemory {
  RankMemory largest;             // with the plan of the stage that needs most
  std::vector<MemoryPlan> plans;  // of each stage
};

/// Written to the log. Error(system_error) where a host has less.
PlannedMemory plan_memory(PreparedRun& run);

/// Writes deck.nml and opens metrics.h5 from this state on; training needs neither, so that what is wrong with them is
/// a warning. Null on all ranks but the one that writes, and where there is no file.
std::unique_ptr<io::MetricsFile> begin_outputs(PreparedRun& run, const io::CheckpointState& from);

/// The last lines of a run at `step`, and its status.
ExitCode conclude(PreparedRun& run, std::int64_t step, StopReason reason, StopConditions& stop, Progress& progress);

/// The same of a run that has no step left to do.
ExitCode conclude_without_steps(PreparedRun& run, std::int64_t step);

}  // namespace nanotron::trainer
