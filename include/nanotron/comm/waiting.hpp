#pragma once

// How a rank waits for others. With a core of its own it polls without a break, which sees an arrival soonest. Where a
// node has more ranks than cores the rank that is waited for may not be running: then every rank of the job sleeps
// between polls, for a part of the time that it has waited so far.
//
// That holds for the libraries of the process, such as HDF5, too: blocking_calls.cpp defines anew (the profiling
// interface, MPI 4.0 section 15.2) MPI_Wait, Waitall, Waitany, Waitsome, Probe, Mprobe, Send, Recv, Sendrecv, Barrier,
// Bcast, Reduce, Allreduce, Reduce_scatter_block, Gather(v), Scatterv, Allgather(v), Comm_dup, Comm_split,
// Comm_split_type and File_open. Other blocking calls, and what MPI-IO does inside of one, wait as the MPI library does.

#include <mpi.h>

#include <chrono>

namespace nanotron::comm {

/// Decides once for the job: asleep when any node has more ranks of `world` than cores that they may use; the
/// environment variable NANOTRON_WAIT = sleep | spin of rank 0 overrules, another word is a warning. Until then ranks
/// spin. Collective.
void choose_waiting(MPI_Comm world);

/// What choose_waiting decided: the same on every rank, since a collective has to be the same call on all of them.
bool waits_asleep();

/// Cores that the ranks of `node` (all on one node) may use together, at least 1: those they may run on, or fewer where
/// their control groups have a limit (core_quota.hpp). Collective.
int usable_cores(MPI_Comm node);

/// One wait: call it after each poll that found nothing.
class Pause {
 public:
  /// True after each sleep, and after some of the polls before it: time for what is too dear for every poll.
  bool operator()();

 private:
  using Clock = std::chrono::steady_clock;
  unsigned polls_ = 0;
  Clock::time_point begin_{};
};

}  // namespace nanotron::comm
