#pragma once

// How a rank waits for others. A rank with a core of its own polls without a break, which has the lowest latency. Where
// a node has more ranks than cores the rank that is waited for may not be running: then every rank of the job sleeps
// between polls, for a fixed fraction of the time waited so far.
//
// This applies to the libraries of the process too, such as HDF5: blocking_calls.cpp redefines, through the profiling
// interface (MPI 4.0 section 15.2), MPI_Wait, Waitall, Waitany, Waitsome, Probe, Mprobe, Send, Recv, Sendrecv, Barrier,
// Bcast, Reduce, Allreduce, Exscan, Reduce_scatter_block, Gather(v), Scatterv, Allgather(v), Alltoall, Comm_dup,
// Comm_split, Comm_split_type. Other blocking calls wait as the MPI library does.

#include <mpi.h>

#include <chrono>

namespace nanotron::comm {

/// Decides once for the job: ranks sleep when any node has more ranks of `world` than cores that they may use. The
/// environment variable NANOTRON_WAIT = sleep | spin of rank 0 overrides this; any other value gives a warning. Until
/// the decision ranks spin. Collective.
void choose_waiting(MPI_Comm world);

/// Whether no lower rank is on this host: what the ranks of a host would do alike, one does. As choose_waiting found
/// it; true before.
bool leads_host();

/// What choose_waiting decided. The same on every rank: all ranks of a collective must make the same MPI call.
bool waits_asleep();

/// Number of cores, min 1, that the ranks of `node` (all on one node) may use together: the union of their affinity
/// masks, or fewer where control groups limit them (comm/limits/limits.hpp). Collective.
int usable_cores(MPI_Comm node);

}  // namespace nanotron::comm

/// Called at each pause of a wait, if something linked to the program defines it: for devices that progress only when
/// the process lets them.
extern "C" [[gnu::weak]] void nanotron_while_waiting();

namespace nanotron::comm {

/// One wait: call it after each poll that found nothing.
class Pause {
 public:
  /// True after each sleep, and after some of the polls before: the time to do what is too expensive for every poll.
  bool operator()();

 private:
  using Clock = std::chrono::steady_clock;
  unsigned polls_ = 0;
  Clock::time_point begin_{};
};

}  // namespace nanotron::comm
