#pragma once

// Connections of the emulated NCCL, as NCCL 2.30.7 makes them: not with the communicator but at first use, in the call
// (or in ncclGroupEnd), where the host waits for the other ranks to make theirs. The GPU continues meanwhile.
//
//   a send, a receive   each direction between two ranks (src/enqueue.cc p2pTaskAppend, src/group.cc groupLaunch,
//                       src/transport.cc ncclTransportP2pSetup)
//   a collective        each algorithm, over all ranks (src/enqueue.cc ncclPrepareTasks, src/group.cc
//                       ncclCollPreconnect); which one is taken depends on the collective and its size. RCCL does it
//                       with the communicator, where all ranks wait for each other (src/init.cc of 2.21.5,
//                       initTransportsRank); its sends and receives are as NCCL's (src/group.cc)

#include <vector>

#include "emulation/nccl_parts.hpp"

namespace nanotron::emulation {

/// A communicator of this process that exists, and what it has connected.
struct Connected {
  int ranks, max_blocks;
  bool rings, trees, sends, receives;
};
std::vector<Connected> communicators();
void follow_communicator(const ncclComm& comm);
void forget_communicator(const ncclComm& comm);

/// What the group that is open needs.
void need_send(ncclComm& comm, int to);
void need_receive(ncclComm& comm, int from);
void need_collective(ncclComm& comm, const Call& call);

/// The end of the group: waits until all that is needed is connected. A fault where that is forever.
void connect();

}  // namespace nanotron::emulation
