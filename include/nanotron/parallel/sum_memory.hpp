#pragma once

// What a gradient sum needs besides the gradients: taken from the arena with the model, before the sum is made.

#include "nanotron/deck/config.hpp"
#include "nanotron/parallel/low_rank.hpp"

namespace nanotron::parallel {

template <class M>
struct SumMemory {
  SumMemory(const deck::ParallelConfig& parallel, const model::ParameterTable& table, Arena& arena);

  Vector<bf16> rounded;  // of RoundedSum

  // Of PowerSgd; error and q are what it carries from step to step.
  LowRankPlan low_rank;
  Vector<M> error, p, q;
};

}  // namespace nanotron::parallel
