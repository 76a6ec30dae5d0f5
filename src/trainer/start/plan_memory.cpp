#include "nanotron/base/process.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/report/host_memory.hpp"
#include "steps.hpp"

namespace nanotron::trainer {
namespace {

void tell_filled(const deck::Config& config, const std::vector<Loaders>& loaders, Log& log) {
  if (config.data.sequences != deck::SequenceKind::documents) return;
  for (const Loaders& of_stage : loaders) {
    log.info("training data: whole documents in {} sequences, {:.1f} % of their positions filled",
             of_stage.training.number_of_sequences(), 100.0 * of_stage.training.filled());
  }
}

}  // namespace

PlannedMemory plan_memory(PreparedRun& run) {
  const TrainingStages& stages = *run.stages;
  PlannedMemory memory{.largest = {.program = resident_bytes(), .staging = staging_bytes(run.grid), .plan = {}},
                       .plans = {}};
  RankMemory& largest = memory.largest;
  for (std::size_t k = 0; k < stages.size(); ++k) {
    const StepPlan plan = in_stage(stages, k, [&] { return plan_step(stages.config(k), run.grid.coordinate()); });
    RankMemory of_stage = largest;
    of_stage.checkpoint = plan.checkpoint_bytes;
    of_stage.plan = plan.memory;
    if (of_stage.plan.total() > largest.plan.total()) largest = of_stage;
    run.log.info("{}{}", stages.has_several() ? stages.name(k) + ": " : "",
                 plan_text(of_largest(of_stage, largest.staging + of_stage.plan.total(), run.grid.world())));
    memory.plans.push_back(plan.memory);
  }
  largest.plan = MemoryPlan::covering(memory.plans);
  const std::uint64_t state = largest.plan.on_host() + (built_for == Processor::gpu ? 0 : largest.plan.total());
  check_host_memory(largest.staging + state, largest.program + largest.checkpoint, run.grid, run.log);
  tell_filled(stages.config(0), run.loaders, run.log);
  return memory;
}

}  // namespace nanotron::trainer
