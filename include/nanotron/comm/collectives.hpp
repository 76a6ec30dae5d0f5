#pragma once

// Collective operations on the memory of a group's transport: host memory for mpi, GPU memory for nccl and
// staged_mpi. T is double, float, bf16, fp16, std::int64_t or std::uint64_t; n counts elements and may exceed
// 2^31. Every rank of the group makes the same calls in the same order with the same n. With one rank they are no-ops
// (all_gather, reduce_scatter and all_to_all copy, unless send and recv are the same).
//
// On a GPU an operation runs after the work queued on `stream`, and work queued there afterwards sees the
// result; on the host the result is complete on return. In shared memory a sum of bf16 or fp16 is accumulated in float
// and rounded once; MPI between nodes, NCCL and Sums::tree may round partial sums too. Library errors throw
// Error(system_error).

#include <cstddef>
#include <cstdint>
#include <span>

#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/comm/group.hpp"
#include "nanotron/comm/transport/messages.hpp"

namespace nanotron::comm {

class Request;

/// Nonblocking all_reduce. data belongs to the operation until wait() returns or test() is true.
template <class T>
[[nodiscard]] Request start_all_reduce(Group& group, T* data, std::size_t n, ReduceOp op, const Stream& stream = {});

/// Nonblocking all_gather and reduce_scatter, and all_to_all of n elements to each rank: both buffers belong to the
/// operation.
template <class T>
[[nodiscard]] Request start_all_gather(Group& group, const T* send, std::size_t n, T* recv, const Stream& stream = {});
template <class T>
[[nodiscard]] Request start_reduce_scatter(Group& group, T* send, T* recv, std::size_t n, ReduceOp op,
                                           const Stream& stream = {});
template <class T>
[[nodiscard]] Request start_all_to_all(Group& group, const T* send, std::size_t n, T* recv, const Stream& stream = {});
/// Nonblocking all_to_all with counts, which may change after the call. On a GPU it follows the work queued before
/// `after`, beside what was queued since; wait() as of the stream that was marked.
template <class T>
[[nodiscard]] Request start_all_to_all(Group& group, const T* send, std::span<const std::size_t> send_counts, T* recv,
                                       std::span<const std::size_t> recv_counts, const StreamPoint& after = {});
StreamPoint mark(Group& group, const Stream& stream);

/// Sends or receives n elements to or from the next or previous rank of the group, a ring; both sides give the same n.
/// Messages of one lane (0, 1, ...) from one rank to another arrive in the order of their sends. Wait for the requests
/// in any order. The first message of a lane is collective over the group.
template <class T>
[[nodiscard]] Request start_send(Group& group, const T* data, std::size_t n, Neighbour to, const Stream& stream = {},
                                 int lane = 0);
template <class T>
[[nodiscard]] Request start_receive(Group& group, T* data, std::size_t n, Neighbour from, const Stream& stream = {},
                                    int lane = 0);

/// A running operation of a Group; the group must outlive it. Move-only; the destructor waits, except
/// during stack unwinding. All ranks wait for their collectives in the order in which they started them.
class Request {
 public:
  Request() = default;  // complete
  ~Request() noexcept(false);
  Request(Request&& other) noexcept;
  Request& operator=(Request&& other) noexcept;

  /// Makes progress without waiting; true when the operation is complete. On the host, call it between
  /// kernels to overlap communication with computation. Cheap (< 1 us) if no progress is possible.
  bool test();
  /// On the host: returns when the result is complete. On a GPU: work queued afterwards on the stream that
  /// the operation was started with sees the result; the host does not wait.
  void wait();

 private:
  template <class T>
  friend Request start_all_reduce(Group&, T*, std::size_t, ReduceOp, const Stream&);
  template <class T>
  friend Request start_all_gather(Group&, const T*, std::size_t, T*, const Stream&);
  template <class T>
  friend Request start_reduce_scatter(Group&, T*, T*, std::size_t, ReduceOp, const Stream&);
  template <class T>
  friend Request start_all_to_all(Group&, const T*, std::size_t, T*, const Stream&);
  template <class T>
  friend Request start_all_to_all(Group&, const T*, std::span<const std::size_t>, T*, std::span<const std::size_t>,
                                  const StreamPoint&);
  template <class T>
  friend Request start_send(Group&, const T*, std::size_t, Neighbour, const Stream&, int);
  template <class T>
  friend Request start_receive(Group&, T*, std::size_t, Neighbour, const Stream&, int);
  Request(Account& account, Operations& operations, std::uint64_t ticket, const Recorded& recorded,
          std::uint64_t watched)
      : account_(&account), operations_(&operations), ticket_(ticket), recorded_(recorded), watched_(watched) {}
  void complete();

  Account* account_ = nullptr;
  Operations* operations_ = nullptr;  // null: complete
  std::uint64_t ticket_ = 0;
  Recorded recorded_{};
  std::uint64_t watched_ = 0;  // PayloadWatch's ticket
};

/// data <- op over ranks of data, in place. In shared memory sums run in rank order: same bits on every rank and run.
template <class T>
void all_reduce(Group& group, T* data, std::size_t n, ReduceOp op, const Stream& stream = {});

/// recv[r*n .. r*n+n) <- send[0 .. n) of rank r. send may be recv + rank*n.
template <class T>
void all_gather(Group& group, const T* send, std::size_t n, T* recv, const Stream& stream = {});

/// recv[0 .. n) <- op over ranks of their send[rank*n .. rank*n+n). send has size*n elements and may be
/// overwritten; recv may be send + rank*n.
template <class T>
void reduce_scatter(Group& group, T* send, T* recv, std::size_t n, ReduceOp op, const Stream& stream = {});

/// As MPI_Alltoallv with packed displacements: send has send_counts[r] elements for each rank r, recv gets
/// recv_counts[r] elements from each rank r, both in rank order. send and recv must not overlap.
template <class T>
void all_to_all(Group& group, const T* send, std::span<const std::size_t> send_counts, T* recv,
                std::span<const std::size_t> recv_counts, const Stream& stream = {});

/// data <- data of rank root.
template <class T>
void broadcast(Group& group, T* data, std::size_t n, int root, const Stream& stream = {});

/// Returns when every rank has called it. Does not wait for GPU work.
void barrier(Group& group);

/// All-reduce of a host value, by MPI for every transport. Sums run in rank order: same bits on every rank.
double sum(Group& group, double value);
double max(Group& group, double value);
double min(Group& group, double value);
std::int64_t sum(Group& group, std::int64_t value);
std::uint64_t sum(Group& group, std::uint64_t value);  // mod 2^64
std::int64_t max(Group& group, std::int64_t value);
std::int64_t min(Group& group, std::int64_t value);

/// max(world, value) of values from 0 to 15, and in the same exchange a comparison: where the ranks of a group of the
/// grid (recorded_groups.hpp) have not begun the same operations, with the same sizes, types and reductions in the same
/// order, this does not return. The flight recorder records it, and the watchdog ends the run with a verdict.
std::int64_t max_and_check_call_order(Group& world, std::int64_t value);

}  // namespace nanotron::comm
