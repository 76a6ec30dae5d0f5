// What a deck would take, for one process to say of any grid.

#include <fmt/format.h>

#include "model_summary.hpp"
#include "nanotron/parallel/traffic.hpp"
#include "nanotron/trainer/checkpointing.hpp"
#include "nanotron/trainer/pipeline_text.hpp"
#include "nanotron/trainer/program.hpp"
#include "nanotron/trainer/training_state.hpp"

namespace nanotron::trainer {
namespace {

constexpr double mib = 1024.0 * 1024.0;

}  // namespace

std::string describe_plan(const deck::Config& config, MPI_Comm world) {
  comm::Group alone(comm::Communicator::duplicate(world), comm::Transport::mpi);
  const comm::GridShape shape = comm::shape_of(config);
  MemoryPlan plan;
  comm::GridCoordinate largest;
  for (int rank = 0; rank < shape.pp * shape.cp * shape.tp; ++rank) {  // stages and shards are of unequal size
    const comm::GridCoordinate at{.pp = rank / (shape.cp * shape.tp), .cp = rank / shape.tp % shape.cp, .tp = rank % shape.tp};
    const MemoryPlan of_rank = plan_memory(config, {shape, at}, alone);
    if (of_rank.total() <= plan.total()) continue;
    plan = of_rank;
    largest = at;
  }
  parallel::StepTraffic traffic = parallel::step_traffic(config, parameter_table_of(config, largest), largest);
  const optim::UpdateTraffic update = plan_update_traffic(config, {shape, largest}, alone);
  traffic.tensor_parallel += update.tensor_parallel;
  traffic.data_parallel += update.data_parallel;
  const auto in_mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / mib; };
  return fmt::format("{}\ngrid: dp {} x pp {} x cp {} x tp {} = {} ranks{}\n{}"
                     "memory of the largest rank (pp {}, cp {}, tp {}):\n{}"
                     "  and while a checkpoint is written up to {:.0f} MiB more\n"
                     "into messages, this rank and step: tensor parallel {:.1f} MiB, context parallel {:.1f} MiB, "
                     "replicas {:.1f} MiB, "
                     "pipeline {:.1f} MiB, experts {:.1f} MiB\n",
                     model_summary(config), shape.dp, shape.pp, shape.cp, shape.tp, shape.size(),
                     shape.ep > 1 ? fmt::format(", experts over ep {} of the replicas", shape.ep) : "",
                     describe_pipeline(config), largest.pp, largest.cp, largest.tp, plan.table(),
                     in_mib(checkpoint_workspace(config, largest)), in_mib(traffic.tensor_parallel),
                     in_mib(traffic.context_parallel),
                     in_mib(traffic.data_parallel), in_mib(traffic.pipeline),
                     in_mib(traffic.expert_parallel));
}

}  // namespace nanotron::trainer
