#pragma once

// Runs of models with experts: on which grids, and what they send.

#include <gtest/gtest.h>

#include <vector>

#include "nanotron/base/error.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron::test {

inline int ranks_of_world() {
  int ranks = 1;
  MPI_Comm_size(world(), &ranks);
  return ranks;
}

// Bytes of all ranks.
inline std::uint64_t over_world(std::uint64_t bytes) {
  MPI_Allreduce(MPI_IN_PLACE, &bytes, 1, MPI_UINT64_T, MPI_SUM, world());
  return bytes;
}

// Whether the bytes of experts are known beforehand. Messages by node are as many as nodes that a token goes to: all of
// two, where it chooses more experts than one has.
inline bool knows_bytes_of_experts(const deck::Config& config) {
  const deck::MoeConfig& moe = config.model.moe;
  return config.parallel.ep_nodes <= 1 ||
         (config.parallel.ep_nodes == 2 && 2 * moe.num_experts_per_tok > moe.num_experts);
}

// What each rank sent is what was predicted. To experts all ranks together send it: what one of them sends, the routing
// says. Where tokens are dropped they send less, and where pairs are short: their padding is predicted. Messages by
// node are predicted for tokens that choose at random; those of small models choose alike, but each goes to one node.
inline void expect_predicted_traffic(const deck::Config& config, const Numbers& ours) {
  EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel);
  EXPECT_EQ(ours.counted.context_parallel, ours.predicted.context_parallel);
  EXPECT_EQ(ours.counted.pipeline, ours.predicted.pipeline);
  EXPECT_EQ(ours.counted.data_parallel, ours.predicted.data_parallel);
  const std::uint64_t sent = over_world(ours.counted.expert_parallel),
                      foreseen = over_world(ours.predicted.expert_parallel);
  const bool sends_all = config.model.moe.capacity_factor == 0.0 && config.preference.beta == 0.0;
  const double margin = knows_bytes_of_experts(config) ? 0.0 : 0.5 * static_cast<double>(foreseen);
  EXPECT_LE(static_cast<double>(sent), static_cast<double>(foreseen) + margin);
  if (sends_all) {
    EXPECT_GE(static_cast<double>(sent), static_cast<double>(foreseen) - margin);
  }
}

// A golden model on data-parallel ranks, with its experts over two of them.
inline deck::Config over_data_ranks(const char* golden, ScalarType compute, std::int64_t steps) {
  deck::Config c = golden_config(golden);
  c.checkpoint.resume = "none";
  c.precision.compute = compute;
  c.parallel.dp = ranks_of_world();
  c.parallel.ep = 2;
  c.run.steps = steps;
  return c;
}

inline bool is_legal(deck::Config config) {
  try {
    trainer::resolve(config, ranks_of_world());
    return true;
  } catch (const Error&) {
    return false;
  }
}

// All grids of these ranks with one of these degrees, pp = 1 or 2, and as much data parallelism as is left.
inline std::vector<deck::Config> grids_of(const deck::Config& base, const std::vector<std::int64_t>& degrees,
                                          const std::vector<std::int64_t>& degrees_of_experts) {
  std::vector<deck::Config> all;
  for (const std::int64_t tp : degrees) {
    for (const std::int64_t pp : {1, 2}) {
      for (const std::int64_t cp : degrees) {
        for (const std::int64_t ep : degrees_of_experts) {
          if (ranks_of_world() % (tp * pp * cp) != 0) continue;
          deck::Config& c = all.emplace_back(base);
          c.parallel.dp = ranks_of_world() / (tp * pp * cp);
          c.parallel.tp = tp;
          c.parallel.pp = pp;
          c.parallel.cp = cp;
          c.parallel.ep = ep;
        }
      }
    }
  }
  return all;
}

}  // namespace nanotron::test
