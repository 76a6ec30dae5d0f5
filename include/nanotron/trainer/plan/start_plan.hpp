#pragma once

// The start of a run on paper, for any number of ranks: what base/start_account.hpp counts in a run.

#include <optional>
#include <string>
#include <vector>

#include "nanotron/base/start_account.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/machine.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::trainer {

/// Consecutive ranks fill a node of `ranks_of_node`.
struct StartPlan {
  std::vector<StartPhase> first;   // of rank 0
  std::vector<StartPhase> others;  // of the rank with most besides it: the first rank of the last node
  std::uint64_t kept = 0;          // bytes of a rank that grow with the number of ranks and stay: tables of ranks
};

/// config is resolved, without what find_message_nodes finds. Of a start without a checkpoint, or with one that
/// `resumes`. Texts have the size of this deck's.
StartPlan plan_start(const deck::Config& config, int ranks_of_node, Processor processor, bool resumes);

/// As text, for the nodes of the machine; without a machine for nodes of 8 ranks.
std::string describe_start(const deck::Config& config, const std::optional<deck::Machine>& machine);

}  // namespace nanotron::trainer
