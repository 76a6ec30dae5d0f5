#pragma once

// Seconds of one operation: a collective, a kernel.

#include <string>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/machine.hpp"
#include "nanotron/tensor/work.hpp"

namespace nanotron::simulation {

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

/// An all-to-all of rows, each to `copies` experts at random: once to each node that has one of them, from there to its
/// ranks, both at the same time. bytes: of all copies. algorithm_rate: bytes per second of one copy to each of these
/// nodes, the rank's own too, that the library reaches; 0: the links alone count.
double exchange_by_node_seconds(double bytes, double copies, const GroupPlacement& group, const deck::Machine& machine,
                                double algorithm_rate = 0.0);

// How an implementation differs from this program, so that published runs of others can be predicted from this
// program's actions: a namelist file of one group, &software. The defaults are this program.

enum class AttentionForm {
  fused,      // scores stay on the chip
  unfused,    // scores are stored: batched GEMMs, softmax, dropout
  recomputed  // unfused, and its forward is computed again in backward (selective recomputation of Korthikanti et al.)
};

struct Software {
  std::string name = "nanotron_hpc";
  AttentionForm attention = AttentionForm::fused;
  bool dropout = false;                  // on attention's probabilities, and before both residual sums
  bool recomputes_whole_layers = false;  // recompute = 'full' repeats the last GEMM of a layer and its sum too
  bool overlaps_tensor_parallel = true;  // collectives of tp beside GEMMs
  bool adds_gradients_apart = false;     // weight gradients are added by a kernel of their own, in bf16
  double launch = 0.0;                   // seconds of the host for a kernel or an operation; 0: never waited for
  bool scatters_messages = false;        // pipeline messages of replicated hidden states: 1/tp each, then gathered
  double kernel_share = 0.0;             // of `memory`, reached by all other kernels; 0: the rates of &kernels
  double exchange_rate = 0.0;            // exchanges_by_node: bytes per second, see exchange_by_node_seconds
  bool reduces_in_bf16 = false;          // sums of gradients over data-parallel ranks
  bool unfused_loss = false;             // a pass over fp32 logits for each operation of the loss
  bool casts_beside = false;             // the kernel before a GEMM writes its FP8 operand and its maximum too
  bool rings_beside_gemms = false;       // a gather before a GEMM, a scatter after it: a piece for each rank of tp
  bool exchanges_by_node = false;        // rows of experts go once to each node, then to its ranks
  bool sorts_in_exchange = false;        // rows of experts arrive sorted, without kernels that copy them
  bool waits_for_exchanges = false;      // no computation beside an exchange of rows of experts
  bool waits_for_counts = false;         // the host launches nothing before it knows how many rows arrive
};

/// Error(deck_error) with every finding and its line.
Software read_software(const std::string& name, const std::string& text);

// Seconds of a kernel of this program (trainer/plan/kernel_time.hpp), or of other software that does the same step.

/// What a step of other sizes needs to know of the deck, where the software is not this program.
struct LayerSizes {
  index_t hidden = 0, intermediate = 0;  // of this rank
};

/// Seconds of one call of the row, launches included.
double kernel_seconds(const WorkRow& row, const deck::Machine& machine, const Software& software,
                      const LayerSizes& sizes);

/// Launches of the host for one call of the row.
double host_launches(const WorkRow& row, const Software& software);

}  // namespace nanotron::simulation
