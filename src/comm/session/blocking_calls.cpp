// Redefines MPI's blocking calls for the whole process. In a job that sleeps while it waits (waiting.hpp) each becomes
// its nonblocking form and polls with sleeps between them; otherwise it calls the next definition, a profiling tool's
// or MPI's. Covers the calls that this program makes and their families. Each is an operation of the flight recorder.
//
// A nonblocking reduction may add in another order than the blocking one. Every rank decides alike, so a run repeats
// bit for bit. Sums that must have the same bits in both cases do not use MPI_Allreduce (collectives.hpp).

#include <dlfcn.h>
#include <mpi.h>

#include "nanotron/base/start_account.hpp"
#include "nanotron/comm/session/waiting.hpp"
#include "nanotron/comm/watch/recorded_groups.hpp"

namespace {

using nanotron::StartCall;
using nanotron::comm::RecordedCall;
using nanotron::comm::waits_asleep;

// Calls test(&done), which does not block, until it is done or fails.
template <class Test>
int poll(const Test& test) {
  nanotron::comm::Pause pause;
  for (;;) {
    int done = 0;
    const int error = test(&done);
    if (error != MPI_SUCCESS || done != 0) return error;
    pause();
  }
}

int finish(int started, MPI_Request* request, MPI_Status* status = MPI_STATUS_IGNORE) {
  if (started != MPI_SUCCESS) return started;
  return poll([&](int* done) { return MPI_Test(request, done, status); });
}

// A barrier that sleeps between polls: the blocking call after it finds all ranks there.
int meet(MPI_Comm comm) {
  MPI_Request request = MPI_REQUEST_NULL;
  return finish(MPI_Ibarrier(comm, &request), &request);
}

int size_of(MPI_Comm comm) {
  int size = 1;
  PMPI_Comm_size(comm, &size);
  return size;
}

std::uint64_t bytes_of(std::uint64_t count, MPI_Datatype type) {
  int size = 1;
  PMPI_Type_size(type, &size);
  return count * static_cast<std::uint64_t>(size);
}

bool is_rank(MPI_Comm comm, int root) {
  int rank = 0;
  PMPI_Comm_rank(comm, &rank);
  return rank == root;
}

// A call of the start in its account; recvs: by rank, where they differ and this rank receives.
void count(StartCall call, MPI_Comm comm, int n, MPI_Datatype type, int root = 0, const int* recvs = nullptr) {
  if (!nanotron::start_account().is_open()) return;
  const int ranks = size_of(comm);
  std::uint64_t all = static_cast<std::uint64_t>(n) * static_cast<std::uint64_t>(ranks);
  if (recvs != nullptr) {
    all = 0;
    for (int r = 0; r < ranks; ++r) all += static_cast<std::uint64_t>(recvs[r]);
  }
  nanotron::start_account().add(nanotron::cost_of_uneven(call, ranks, bytes_of(static_cast<std::uint64_t>(n), type),
                                                         bytes_of(all, type), is_rank(comm, root)));
}

// The next definition: a preloaded tool's, or MPI's.
template <class F>
F* next_of(const char* name, F* mpi) {
  void* const next = dlsym(RTLD_NEXT, name);
  return next != nullptr ? reinterpret_cast<F*>(next) : mpi;
}

}  // namespace

#define NEXT(name, ...)                                 \
  [&] {                                                 \
    static auto* const next = next_of(#name, &P##name); \
    return next(__VA_ARGS__);                           \
  }()

// A collective whose nonblocking form takes the same arguments and a request.
#define COLLECTIVE(name, nonblocking, ...)             \
  const RecordedCall recorded(comm, #name);            \
  if (!waits_asleep()) return NEXT(name, __VA_ARGS__); \
  MPI_Request request = MPI_REQUEST_NULL;              \
  return finish(nonblocking(__VA_ARGS__, &request), &request)

// A call without a nonblocking form that waits for all ranks of `comm`.
#define MEETING(comm, name, ...)                                                 \
  const RecordedCall recorded(comm, #name);                                      \
  if (const int error = waits_asleep() ? meet(comm) : MPI_SUCCESS) return error; \
  return NEXT(name, __VA_ARGS__)

extern "C" {

int MPI_Wait(MPI_Request* request, MPI_Status* status) {
  const RecordedCall recorded("MPI_Wait");
  if (!waits_asleep()) return NEXT(MPI_Wait, request, status);
  return finish(MPI_SUCCESS, request, status);
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status* statuses) {
  const RecordedCall recorded("MPI_Waitall");
  if (!waits_asleep()) return NEXT(MPI_Waitall, count, requests, statuses);
  return poll([&](int* done) { return MPI_Testall(count, requests, done, statuses); });
}

int MPI_Waitany(int count, MPI_Request requests[], int* index, MPI_Status* status) {
  const RecordedCall recorded("MPI_Waitany");
  if (!waits_asleep()) return NEXT(MPI_Waitany, count, requests, index, status);
  return poll([&](int* done) { return MPI_Testany(count, requests, index, done, status); });
}

int MPI_Waitsome(int count, MPI_Request requests[], int* completed, int indices[], MPI_Status* statuses) {
  const RecordedCall recorded("MPI_Waitsome");
  if (!waits_asleep()) return NEXT(MPI_Waitsome, count, requests, completed, indices, statuses);
  return poll([&](int* done) {
    const int error = MPI_Testsome(count, requests, completed, indices, statuses);
    *done = *completed != 0 ? 1 : 0;  // MPI_UNDEFINED: no request is active
    return error;
  });
}

int MPI_Probe(int from, int tag, MPI_Comm comm, MPI_Status* status) {
  const RecordedCall recorded("MPI_Probe");
  if (!waits_asleep()) return NEXT(MPI_Probe, from, tag, comm, status);
  return poll([&](int* done) { return MPI_Iprobe(from, tag, comm, done, status); });
}

int MPI_Mprobe(int from, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status) {
  const RecordedCall recorded("MPI_Mprobe");
  if (!waits_asleep()) return NEXT(MPI_Mprobe, from, tag, comm, message, status);
  return poll([&](int* done) { return MPI_Improbe(from, tag, comm, done, message, status); });
}

int MPI_Send(const void* data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  const RecordedCall recorded("MPI_Send");
  if (!waits_asleep()) return NEXT(MPI_Send, data, n, type, to, tag, comm);
  MPI_Request request = MPI_REQUEST_NULL;
  return finish(MPI_Isend(data, n, type, to, tag, comm, &request), &request);
}

int MPI_Recv(void* data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status) {
  const RecordedCall recorded("MPI_Recv");
  if (!waits_asleep()) return NEXT(MPI_Recv, data, n, type, from, tag, comm, status);
  MPI_Request request = MPI_REQUEST_NULL;
  return finish(MPI_Irecv(data, n, type, from, tag, comm, &request), &request, status);
}

int MPI_Sendrecv(const void* send, int sends, MPI_Datatype send_type, int to, int send_tag, void* recv, int recvs,
                 MPI_Datatype recv_type, int from, int recv_tag, MPI_Comm comm, MPI_Status* status) {
  const RecordedCall recorded("MPI_Sendrecv");
  if (!waits_asleep()) {
    return NEXT(MPI_Sendrecv, send, sends, send_type, to, send_tag, recv, recvs, recv_type, from, recv_tag, comm,
                status);
  }
  MPI_Request sent = MPI_REQUEST_NULL, received = MPI_REQUEST_NULL;
  int error = MPI_Irecv(recv, recvs, recv_type, from, recv_tag, comm, &received);
  if (error != MPI_SUCCESS) return error;
  error = finish(MPI_Isend(send, sends, send_type, to, send_tag, comm, &sent), &sent);
  if (error == MPI_SUCCESS) return finish(MPI_SUCCESS, &received, status);
  if (MPI_Cancel(&received) == MPI_SUCCESS) finish(MPI_SUCCESS, &received);  // else it would receive a later message
  return error;
}

int MPI_Barrier(MPI_Comm comm) {
  count(StartCall::barrier, comm, 0, MPI_BYTE);
  COLLECTIVE(MPI_Barrier, MPI_Ibarrier, comm);
}

int MPI_Bcast(void* data, int n, MPI_Datatype type, int root, MPI_Comm comm) {
  count(StartCall::broadcast, comm, n, type);
  COLLECTIVE(MPI_Bcast, MPI_Ibcast, data, n, type, root, comm);
}

int MPI_Reduce(const void* send, void* recv, int n, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
  count(StartCall::reduce, comm, n, type);
  COLLECTIVE(MPI_Reduce, MPI_Ireduce, send, recv, n, type, op, root, comm);
}

int MPI_Allreduce(const void* send, void* recv, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  count(StartCall::all_reduce, comm, n, type);
  COLLECTIVE(MPI_Allreduce, MPI_Iallreduce, send, recv, n, type, op, comm);
}

int MPI_Exscan(const void* send, void* recv, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  count(StartCall::scan, comm, n, type);
  COLLECTIVE(MPI_Exscan, MPI_Iexscan, send, recv, n, type, op, comm);
}

int MPI_Reduce_scatter_block(const void* send, void* recv, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  COLLECTIVE(MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, send, recv, n, type, op, comm);
}

int MPI_Gather(const void* send, int sends, MPI_Datatype send_type, void* recv, int recvs, MPI_Datatype recv_type,
               int root, MPI_Comm comm) {
  count(StartCall::gather, comm, sends, send_type, root);
  COLLECTIVE(MPI_Gather, MPI_Igather, send, sends, send_type, recv, recvs, recv_type, root, comm);
}

int MPI_Gatherv(const void* send, int sends, MPI_Datatype send_type, void* recv, const int recvs[], const int at[],
                MPI_Datatype recv_type, int root, MPI_Comm comm) {
  count(StartCall::gather, comm, sends, send_type, root, is_rank(comm, root) ? recvs : nullptr);
  COLLECTIVE(MPI_Gatherv, MPI_Igatherv, send, sends, send_type, recv, recvs, at, recv_type, root, comm);
}

int MPI_Scatterv(const void* send, const int sends[], const int at[], MPI_Datatype send_type, void* recv, int recvs,
                 MPI_Datatype recv_type, int root, MPI_Comm comm) {
  COLLECTIVE(MPI_Scatterv, MPI_Iscatterv, send, sends, at, send_type, recv, recvs, recv_type, root, comm);
}

int MPI_Allgather(const void* send, int sends, MPI_Datatype send_type, void* recv, int recvs, MPI_Datatype recv_type,
                  MPI_Comm comm) {
  count(StartCall::all_gather, comm, recvs, recv_type);
  COLLECTIVE(MPI_Allgather, MPI_Iallgather, send, sends, send_type, recv, recvs, recv_type, comm);
}

int MPI_Alltoall(const void* send, int sends, MPI_Datatype send_type, void* recv, int recvs, MPI_Datatype recv_type,
                 MPI_Comm comm) {
  count(StartCall::all_to_all, comm, sends, send_type);
  COLLECTIVE(MPI_Alltoall, MPI_Ialltoall, send, sends, send_type, recv, recvs, recv_type, comm);
}

int MPI_Allgatherv(const void* send, int sends, MPI_Datatype send_type, void* recv, const int recvs[], const int at[],
                   MPI_Datatype recv_type, MPI_Comm comm) {
  count(StartCall::all_gather, comm, sends, send_type, 0, recvs);
  COLLECTIVE(MPI_Allgatherv, MPI_Iallgatherv, send, sends, send_type, recv, recvs, at, recv_type, comm);
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* made) {
  count(StartCall::duplicate, comm, 0, MPI_BYTE);
  MEETING(comm, MPI_Comm_dup, comm, made);
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
  count(StartCall::split, comm, 0, MPI_BYTE);
  MEETING(comm, MPI_Comm_split, comm, color, key, made);
}

// Waits as the MPI library does: it has no nonblocking form, and the ranks that do not call it cannot be met.
int MPI_Comm_create_group(MPI_Comm comm, MPI_Group ranks, int tag, MPI_Comm* made) {
  const RecordedCall recorded("MPI_Comm_create_group");
  const int error = NEXT(MPI_Comm_create_group, comm, ranks, tag, made);
  if (error == MPI_SUCCESS && *made != MPI_COMM_NULL) count(StartCall::group, *made, 0, MPI_BYTE);
  return error;
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* made) {
  count(StartCall::split, comm, 0, MPI_BYTE);
  MEETING(comm, MPI_Comm_split_type, comm, type, key, info, made);
}

}  // extern "C"
