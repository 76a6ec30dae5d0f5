#pragma once

// The phases that the time of a run is divided into.

#include <string>
#include <vector>

#include "nanotron/base/timer.hpp"
#include "nanotron/comm/group.hpp"

namespace nanotron::trainer {

enum class PhaseKind { data, computing, communication, waiting, output };

/// Phases that are reported together.
struct PhaseLine {
  std::string label;
  PhaseKind kind;
  std::vector<Phase> phases;
};

std::vector<PhaseLine> phase_lines();

/// The phases of a run, for Timers::set_phases.
std::vector<Phase> run_phases();

/// Seconds of this rank in each phase (as run_phases) -> seconds that each rank computed, by rank; on rank 0, elsewhere
/// empty. Collective over the world.
std::vector<double> gather_computing(const std::vector<double>& phase_seconds, comm::Group& world);

}  // namespace nanotron::trainer
