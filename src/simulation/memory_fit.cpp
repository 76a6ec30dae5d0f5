#include "nanotron/simulation/memory_fit.hpp"

#include <algorithm>

#include "nanotron/trainer/plan/nccl_of_rank.hpp"
#include "nanotron/trainer/plan/plan.hpp"
#include "nanotron/trainer/plan/roofline.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::simulation {

// The first stage keeps most micro-batches, the last has the head: they are looked at first.
double memory_bytes(const deck::Config& config, const deck::Machine& machine, double limit) {
  const comm::GridShape shape = comm::shape_of(config);
  std::vector<int> stages{0};
  if (shape.pp > 1) stages.push_back(shape.pp - 1);
  for (int r = 1; r < shape.pp - 1; ++r) stages.push_back(r);
  double most = 0.0;
  for (const int r : stages) {
    const trainer::StepPlan plan = trainer::plan_step(config, {.pp = r}, trainer::processor_of(machine));
    most = std::max(most, static_cast<double>(plan.memory.total()));
    if (most > limit) break;
  }
  return most;
}

bool fits(const deck::Config& config, const deck::Machine& machine) {
  const double limit = machine.buffer_limit(), memory = memory_bytes(config, machine, limit);
  return memory <= limit && memory + trainer::nccl_memory_of(config, {}, machine).bytes <= limit;
}

}  // namespace nanotron::simulation
