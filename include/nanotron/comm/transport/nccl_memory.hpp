#pragma once

// GPU memory that NCCL takes besides the buffer of a run, by the rules of NCCL 2.30.7 (files below its src/):
//
//   allocation     a multiple of 2 MiB, however small (include/alloc.h ncclCuMemAlloc)
//   communicator   2 allocations (init.cc devCommSetup)
//   channel        3 allocations (channel.cc initChannel); with multicast 1 more, and 1 a communicator
//   multicast      of 2 GPUs of a node or more (transport/nvls.cc)
//   connection     buffers of LL 0.5, LL128 4.7, Simple 4 MiB (init.cc computeBuffSizes), so
//     in a node        10 MiB where it receives, 2 where it sends (transport/p2p.cc p2pRecvSetup, p2pSendSetup)
//     between nodes    10 MiB either way; of sends and receives 2 MiB a channel for all of each kind (transport/net.cc)
//   ring, tree, multicast, send, receive: connected when first used (transport/generic.cc, enqueue.cc p2pTaskAppend)
//
// Channels in a node of NVLink: 24, as the search of graph/search.cc finds on A100 and H100; between nodes twice those
// of the rails that the ranks reach, doubled again for up to four fast rails (graph/search.cc ncclTopoDupChannels,
// graph/connect.cc ncclTopoPostset). maxCTAs limits them. Sends and receives have the next power of two of them, from
// a node to another at most one for each 14 GB/s of a rail (graph/paths.cc ncclTopoComputeP2pChannels).
//
// Trees and multicast are counted where NCCL may choose them, PAT and CollNet are not.

#include <span>
#include <vector>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/machine.hpp"

namespace nanotron::comm {

/// maxCTAs of messages for parallel%message_blocks: 0 is 4. Two directions in two lanes then take 16 thread blocks, as
/// many as a collective; 4 channels are what NCCL gives a rail of 400 Gb/s. In a node it would open 32: each takes
/// memory at both ends, 3.3 GiB for a ring's links.
inline int blocks_of_messages(int asked) { return asked > 0 ? asked : 4; }

/// What a rank does on a communicator.
struct NcclUse {
  bool collectives = false, all_reduces = false;  // all_reduces: collectives too
  bool exchanges = false;                         // messages with all others
  bool sends = false, receives = false;           // with one other
  bool operator==(const NcclUse&) const = default;
};

/// A communicator as one of its ranks sees it.
struct NcclPlan {
  int ranks = 2, local = 2, nodes = 1;  // local: of its node, itself included
  int max_blocks = 0;                   // maxCTAs; 0: not limited
  NcclUse use{};
};

/// multicast: of the NVSwitches of Hopper and later, which NCCL_NVLS_ENABLE=0 turns off.
struct NcclNode {
  int ranks = 8, rails = 8;
  double rail = 50e9;  // bytes per second
  bool multicast = true;
};

struct NcclMemory {
  int communicators = 0, channels = 0;
  double bytes = 0.0;
  NcclMemory& operator+=(const NcclMemory& other) {
    communicators += other.communicators;
    channels += other.channels;
    bytes += other.bytes;
    return *this;
  }
};

NcclMemory nccl_memory(const NcclPlan& plan, const NcclNode& node);

/// Bytes that NCCL has allocated in this process; 0 if it cannot report them, as before 2.29.7.
std::uint64_t nccl_bytes_taken();

/// The communicators of a rank: one for each of its groups, eight for the links of a ring. used: operations of a step;
/// ranks_of_node: consecutive ranks fill a node.
std::vector<NcclPlan> nccl_plans(const GridShape& shape, const GridCoordinate& at,
                                 std::span<const PlannedOperation> used, int message_blocks, int ranks_of_node);

}  // namespace nanotron::comm
