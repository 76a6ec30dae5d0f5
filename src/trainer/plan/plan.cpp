#include "nanotron/trainer/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/trainer/checkpoint/checkpointing.hpp"
#include "nanotron/trainer/data/training_stages.hpp"
#include "nanotron/trainer/faults/step_guard.hpp"
#include "nanotron/trainer/plan/roofline.hpp"
#include "nanotron/trainer/report/pipeline_text.hpp"
#include "nanotron/trainer/state/forward_backward.hpp"
#include "nanotron/trainer/state/run_resources.hpp"
#include "nanotron/trainer/state/training_state.hpp"
#include "trainer/report/model_summary.hpp"

namespace nanotron::trainer {
namespace {

comm::NcclNode node_of(const deck::Config& config, const deck::Machine& machine) {
  return {.ranks = machine.node.ranks,
          .rails = machine.network.rails,
          .rail = machine.network.rail,
          .multicast = machine.node.multicast != 0 && !computes_bad_steps_again(config)};
}

}  // namespace

std::vector<comm::NcclPlan> nccl_plans_of(const deck::Config& config, const comm::GridCoordinate& at,
                                          int ranks_of_node) {
  const WorkList work = step_work(config, at, Processor::gpu);
  return comm::nccl_plans(comm::shape_of(config), at, work.operations(),
                          static_cast<int>(config.parallel.message_blocks), ranks_of_node);
}

comm::NcclMemory nccl_memory_of(const deck::Config& config, const comm::GridCoordinate& at,
                                const deck::Machine& machine) {
  comm::NcclMemory sum;
  const bool is_used = machine.is_gpu && config.parallel.backend != deck::Backend::mpi;
  if (!is_used || machine.node.ranks == 0 || comm::shape_of(config).size() == 1) return sum;
  for (const comm::NcclPlan& plan : nccl_plans_of(config, at, machine.node.ranks)) {
    sum += comm::nccl_memory(plan, node_of(config, machine));
  }
  return sum;
}

namespace {

constexpr double mib = 1024.0 * 1024.0;

// The group of rank 0: ranks of the coordinates that move(at, i) sets for i = 0, 1, ..., count - 1.
template <class F>
std::vector<int> group_of(const comm::GridShape& shape, int count, const F& move) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) {
    comm::GridCoordinate at;
    move(at, i);
    ranks.push_back(comm::rank_of(shape, at));
  }
  return ranks;
}

// A line for each axis of more than one rank: group size, span of the group in ranks, bytes.
std::string traffic_table(const comm::GridShape& shape, const comm::StepTraffic& traffic) {
  const auto replica = [&](comm::GridCoordinate& at, int i) {
    at.cp = i % shape.cp;
    at.dp = i / shape.cp;
  };
  struct Axis {
    const char* name;
    std::vector<int> ranks;
    const comm::Bytes& bytes;
  };
  const std::array axes{
      Axis{"tensor parallel", group_of(shape, shape.tp, [](auto& at, int i) { at.tp = i; }), traffic.tensor_parallel},
      Axis{"context parallel", group_of(shape, shape.cp, [](auto& at, int i) { at.cp = i; }), traffic.context_parallel},
      Axis{"pipeline", group_of(shape, shape.pp, [](auto& at, int i) { at.pp = i; }), traffic.pipeline},
      Axis{"expert parallel", comm::ranks_of_group(shape, {}, comm::GroupKind::ep), traffic.expert_parallel},
      Axis{"data parallel", group_of(shape, shape.dp * shape.cp, replica), traffic.data_parallel}};
  std::string text = "communication of this rank per step:\n";
  text += fmt::format("  {:<17}{:>7}{:>14}{:>18}{:>18}\n", "axis", "ranks", "span", "algorithm bytes", "bus bytes");
  for (const Axis& axis : axes) {
    if (axis.ranks.size() == 1) continue;
    const auto [first, last] = std::ranges::minmax(axis.ranks);
    text += fmt::format("  {:<17}{:>7}{:>14}{:>14.1f} MiB{:>14.1f} MiB\n", axis.name, axis.ranks.size(),
                        fmt::format("{} ranks", last - first + 1), static_cast<double>(axis.bytes.counted) / mib,
                        axis.bytes.sent / mib);
  }
  return text + "  span: from the first to the last rank of a group; a node of that many ranks can hold the group\n";
}

std::string nccl_line(const comm::NcclMemory& nccl) {
  if (nccl.communicators == 0) return "";
  return fmt::format("  NCCL's buffers {:>10.1f} MiB at most, besides: {} communicators, {} channels\n",
                     nccl.bytes / mib, nccl.communicators, nccl.channels);
}

// What is planned for; of a machine whose file tells the memory, whether the buffer of the largest rank and NCCL's fit.
std::string memory_line(const std::optional<deck::Machine>& machine, double buffer, double nccl) {
  constexpr double gib = 1024.0 * mib;
  if (!machine) {
    return fmt::format("  planned for a {}, as --machine names no other: other kernels need other workspaces\n",
                       built_for == Processor::gpu ? "GPU" : "host");
  }
  if (machine->node.memory_bytes == 0.0) return "";
  const double reserved = machine->node.reserved_bytes, memory = machine->node.memory_bytes;
  return fmt::format("  {}: {:.1f} GiB{} and {:.1f} GiB reserved are {:.0f} % of the {:.1f} GiB of a rank of {}\n",
                     buffer + nccl <= machine->buffer_limit() ? "fits" : "does not fit", (buffer + nccl) / gib,
                     nccl > 0.0 ? " with NCCL's buffers" : "", reserved / gib,
                     100.0 * (buffer + nccl + reserved) / memory, memory / gib, machine->name);
}

std::string neighbour_line(const StepPlan& plan) {
  if (plan.neighbour_bytes == 0) return "";
  return fmt::format(
      "  plus {:.0f} MiB for each rank of a host in its neighbour_directory: the state of the rank and of its partner, "
      "twice\n",
      static_cast<double>(plan.neighbour_bytes) / mib);
}

std::string plan_of_stage(const deck::Config& config, const std::optional<deck::Machine>& machine) {
  const comm::GridShape shape = comm::shape_of(config);
  const Processor processor = machine ? processor_of(*machine) : built_for;
  if (built_for == Processor::gpu && processor == Processor::cpu) {
    fail(ExitCode::deck_error, {.what = "this program was built for GPUs and plans for them only",
                                .found = machine->name + ", processor = 'cpu'",
                                .change = "the program of a CPU build plans for both"});
  }
  StepPlan plan;
  comm::GridCoordinate largest;
  for (int rank = 0; rank < shape.pp * shape.cp * shape.tp; ++rank) {  // stages and shards are of unequal size
    const comm::GridCoordinate at{
        .pp = rank / (shape.cp * shape.tp), .cp = rank / shape.tp % shape.cp, .tp = rank % shape.tp};
    StepPlan of_rank = plan_step(config, at, processor);
    if (of_rank.memory.total() <= plan.memory.total()) continue;
    plan = std::move(of_rank);
    largest = at;
  }
  const comm::NcclMemory nccl = machine ? nccl_memory_of(config, largest, *machine) : comm::NcclMemory{};
  return fmt::format(
      "{}\n{}{}"
      "memory of the largest rank (pp {}, cp {}, tp {}):\n{}{}{}"
      "  plus up to {:.0f} MiB while a checkpoint is written\n{}{}{}",
      model_summary(config), grid_line(config), describe_pipeline(config), largest.pp, largest.cp, largest.tp,
      plan.memory.table(), nccl_line(nccl), memory_line(machine, static_cast<double>(plan.memory.total()), nccl.bytes),
      static_cast<double>(plan.checkpoint_bytes) / mib, neighbour_line(plan),
      shape.size() > 1 ? traffic_table(shape, plan.traffic) : "", machine ? describe_roofline(config, *machine) : "");
}

}  // namespace

StepPlan plan_step(const deck::Config& config, const comm::GridCoordinate& at, Processor processor) {
  return with_scalar_type(config.precision.compute, [&]<class T>(std::type_identity<T>) {
    comm::ProcessGrid grid = comm::ProcessGrid::planned(comm::shape_of(config), at);
    Timers timers;
    Device device = Device::planning(timers, gemm_mode_of(config), processor);
    Arena arena = Arena::planning(processor);
    TrainingState<T> state(config, grid, device, arena);
    return StepPlan{.memory = arena.plan(),
                    .traffic = make_forward_backward<T>(config, grid, device, state)->traffic() +
                               state.reducers.traffic() + state.optimizer->traffic() + state.score_maxima.traffic(),
                    .checkpoint_bytes = checkpoint_workspace<T>(config, grid, state),
                    .neighbour_bytes = neighbour_bytes<T>(config, grid, state)};
  });
}

std::string describe_plan(const deck::Config& config, const std::optional<deck::Machine>& machine) {
  const TrainingStages stages(config);
  if (!stages.has_several()) return plan_of_stage(config, machine);
  std::string text = stages.table({}) + "\n";
  for (std::size_t k = 0; k < stages.size(); ++k) {
    text += fmt::format("\n{}\n{}", stages.name(k),
                        in_stage(stages, k, [&] { return plan_of_stage(stages.config(k), machine); }));
  }
  return text;
}

}  // namespace nanotron::trainer
