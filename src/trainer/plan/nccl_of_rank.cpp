#include "nanotron/trainer/plan/nccl_of_rank.hpp"

#include "nanotron/deck/config.hpp"
#include "nanotron/trainer/faults/step_guard.hpp"
#include "nanotron/trainer/plan/roofline.hpp"

namespace nanotron::trainer {
namespace {

comm::NcclNode node_of(const deck::Config& config, const deck::Machine& machine) {
  const bool is_hopper = machine.peak_fp8 > machine.peak_bf16;  // or newer
  return {.ranks = machine.node.ranks,
          .rails = machine.network.rails,
          .rail = machine.network.rail,
          .multicast = is_hopper && !computes_bad_steps_again(config)};
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

}  // namespace nanotron::trainer
