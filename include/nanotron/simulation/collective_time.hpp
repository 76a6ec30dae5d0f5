#pragma once

// Seconds of collectives by algorithm and level of the network: n ranks on N nodes, g of them on each; S bytes of the
// buffer of a rank (comm/operation_log.hpp). B: bandwidth of a ring. In a node that of NVLink or shared memory; between
// nodes each rank has its share of the rails, so that groups of one rank per node run side by side:
//
//   B = link                                    N = 1
//   B = min(link, g rails rail / node ranks)    N > 1
//
//   a step along the ring takes l = latency of the node; every g-th one crosses nodes: latency of the network
//   ring  all-gather, reduce-scatter   (n-1)/n S/B + steps, steps = (n-N) l_node + (N-1) l_network
//         all-reduce                   twice that
//   tree  all-reduce                   2 (n-1)/n S/B + 2 ((g-1) l_node + ceil(log2 N) l_network)
//         broadcast                    S/B + the steps of half of it
//   all-to-all                         S max(g/n / link, (n-g)/n / rail share) + (n-1) l
//   message                            S / (link or rail share) + l
//
// An all-reduce takes the faster of ring and tree (NCCL's choice by size).

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/machine.hpp"

namespace nanotron::simulation {

/// Where the ranks of a group are.
struct GroupPlacement {
  int ranks = 1, nodes = 1;
  int per_node() const { return (ranks + nodes - 1) / nodes; }
};

/// Consecutive ranks fill a node. Without &node in the machine's file all ranks share one.
GroupPlacement placement_of(const std::vector<int>& ranks, const deck::Machine& machine);

/// Error(deck_error) where the machine's file lacks &node, or &network for a group that crosses nodes.
double collective_seconds(comm::Operation operation, double bytes, const GroupPlacement& group,
                          const deck::Machine& machine);

}  // namespace nanotron::simulation
