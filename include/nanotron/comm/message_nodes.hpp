#pragma once

// The nodes of expert-parallel groups whose messages go by node.

#include <mpi.h>

#include <optional>

#include "nanotron/comm/host_map.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/machine.hpp"

namespace nanotron::comm {

/// Hosts of each expert-parallel group of a resolved deck. Error(deck_error) unless all groups have equally many, and
/// each of these equally many consecutive ranks.
int nodes_of_experts(const deck::Config& config, const HostMap& hosts);

/// parallel%ep_nodes is 0, and a run finds it.
bool looks_for_message_nodes(const deck::ParallelConfig& parallel);

/// parallel%ep_nodes, where a run finds it: from the hosts of the ranks of world, collective; from a machine, whose
/// nodes consecutive ranks fill. Error(deck_error) without a machine that has nodes.
void find_message_nodes(deck::Config& config, MPI_Comm world);
deck::Config with_message_nodes(deck::Config config, const std::optional<deck::Machine>& machine);

}  // namespace nanotron::comm
