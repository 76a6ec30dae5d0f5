#include "nanotron/trainer/state/run_phases.hpp"

#include <fmt/format.h>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/watch/watched_groups.hpp"

namespace nanotron::trainer {

std::vector<PhaseLine> phase_lines() {
  using enum PhaseKind;
  constexpr auto closed = Phase::Kind::closed;
  std::vector<PhaseLine> all{{"first use of kernels", output, {{"first use of kernels", closed}}},
                             {"read tokens", data, {{"load tokens"}}},
                             {"forward", computing, {{"forward"}}},
                             {"loss", computing, {{"loss"}}},
                             {"backward", computing, {{"backward"}}},
                             {"gradient norm", computing, {{"gradient norm"}}},
                             {"optimizer", computing, {{"optimizer"}}},
                             {"pipeline wait", waiting, {{"pipeline wait"}}},
                             {"validation", output, {{"validation", closed}}},
                             {"checkpoints", output, {{"checkpoint", closed}}},
                             {"comparison of replicas", output, {{"compare replicas", closed}}},
                             {"other work of a step", computing, {{"step"}}}};
  for (const comm::AxisOperations& axis : comm::axis_operations()) {
    const comm::OperationNames& n = axis.names;
    all.push_back({fmt::format("{} communication", axis.axis),
                   communication,
                   {{n.all_reduce},
                    {n.all_gather},
                    {n.reduce_scatter},
                    {n.broadcast},
                    {n.all_to_all},
                    {n.message},
                    {n.value},
                    {n.wait}}});
  }
  return all;
}

std::vector<Phase> run_phases() {
  std::vector<Phase> phases;
  for (const PhaseLine& line : phase_lines()) phases.insert(phases.end(), line.phases.begin(), line.phases.end());
  return phases;
}

std::vector<double> gather_computing(const std::vector<double>& phase_seconds, comm::Group& world) {
  double mine = 0.0;
  std::size_t phase = 0;
  for (const PhaseLine& line : phase_lines()) {
    for (std::size_t i = 0; i < line.phases.size(); ++i, ++phase) {
      if (line.kind == PhaseKind::computing) mine += phase_seconds[phase];
    }
  }
  std::vector<double> all(world.rank() == 0 ? static_cast<std::size_t>(world.size()) : 0);
  NANOTRON_CHECK_MPI(MPI_Gather(&mine, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, 0, world.mpi()));
  return all;
}

}  // namespace nanotron::trainer
