#pragma once

// Two runs of the trainer, held against each other.

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "support/differences.hpp"
#include "support/training.hpp"

namespace nanotron::test {

// Of runs that are held against each other. Sanitizers look at memory, which is the same in every step; an emulated GPU
// repeats the run.
#if defined(__SANITIZE_ADDRESS__) || defined(NANOTRON_EMULATED_GPU)
inline constexpr std::int64_t compared_steps = 2;
#else
inline constexpr std::int64_t compared_steps = 10;
#endif

// The same run on one rank, computed by rank 0 and given to all.
inline Numbers serial(const deck::Config& config, std::int64_t steps) {
  deck::Config alone = config;
  alone.parallel.dp = alone.parallel.tp = alone.parallel.pp = alone.parallel.cp = alone.parallel.ep = 1;
  alone.parallel.expert_tp = 0;
  alone.parallel.zero_stage = alone.parallel.zero_size = 0;
  // With 'layout' a tile is a part of the order of sums.
  if (alone.precision.reproducible != deck::Reproducible::layout) alone.parallel.mlp_tile = 0;
  alone.parallel.ep_overlap = false;
  alone.parallel.ep_messages = deck::ExpertMessages::by_rank;
  alone.parallel.ep_nodes = 0;
  alone.parallel.recompute_dispatch = false;
  return run_training(alone, MPI_COMM_SELF, steps);
}

inline double worst_loss_difference(const Numbers& ours, const Numbers& theirs) {
  return larger(largest_relative_difference(ours.losses, theirs.losses),
                largest_relative_difference(ours.grad_norms, theirs.grad_norms));
}

// Adam divides by sqrt(v): rounding in a near-zero gradient moves a parameter by up to a learning rate times
// its relative error, so the end state is held to a looser bound than the losses.
inline void expect_same_state(const Tensors& ours, const Tensors& theirs, const std::set<std::string>& but = {}) {
  ASSERT_EQ(ours.size(), theirs.size());
  ASSERT_FALSE(theirs.empty());
  for (const auto& [name, tensor] : theirs) {
    if (but.contains(name)) continue;
    EXPECT_LT(relative_difference(ours.at(name), tensor), 1e-9) << name;
  }
}

}  // namespace nanotron::test
