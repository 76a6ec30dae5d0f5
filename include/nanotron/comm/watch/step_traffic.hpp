#pragma once

// Bytes that a rank moves per training step. Every class that communicates computes its own share from group sizes
// (Group::planned), without sending anything. A step is the sum of its parts.

#include "nanotron/base/types.hpp"

namespace nanotron::comm {

/// counted: bytes given to the call, as comm::Traffic counts them: n elements for an all-reduce of n or an all-gather
/// of n per rank, n x ranks for a reduce-scatter. sent: bytes sent to other ranks, with ring algorithms for all-reduce,
/// reduce-scatter and all-gather (what NCCL and MPI send for large messages) and direct messages for all-to-all.
struct Bytes {
  index_t counted = 0;
  double sent = 0.0;

  Bytes& operator+=(const Bytes& other) {
    counted += other.counted;
    sent += other.sent;
    return *this;
  }
};

inline Bytes operator+(Bytes a, const Bytes& b) { return a += b; }
inline Bytes operator*(index_t times, const Bytes& b) {
  return {times * b.counted, static_cast<double>(times) * b.sent};
}

inline double share_of_others(index_t ranks) { return static_cast<double>(ranks - 1) / static_cast<double>(ranks); }
/// Zero in a group of one rank.
inline Bytes share_sent(index_t bytes, index_t ranks, double share) {
  return ranks == 1 ? Bytes{} : Bytes{bytes, static_cast<double>(bytes) * share};
}
inline Bytes message_bytes(index_t bytes) { return {bytes, static_cast<double>(bytes)}; }
/// bytes: of the buffer on each rank.
inline Bytes all_reduce_bytes(index_t bytes, index_t ranks) {
  return share_sent(bytes, ranks, 2.0 * share_of_others(ranks));
}
inline Bytes reduce_scatter_bytes(index_t bytes, index_t ranks) {
  return share_sent(bytes, ranks, share_of_others(ranks));
}
/// bytes: of one rank's part.
inline Bytes all_gather_bytes(index_t bytes, index_t ranks) {
  return share_sent(bytes, ranks, static_cast<double>(ranks - 1));
}
/// bytes: to all ranks, this one included.
inline Bytes all_to_all_bytes(index_t bytes, index_t ranks) { return share_sent(bytes, ranks, share_of_others(ranks)); }
/// bytes: of the buffer. sent: the mean over ranks, each being root equally often: (ranks - 1) x bytes / ranks.
inline Bytes broadcast_bytes(index_t bytes, index_t ranks) { return share_sent(bytes, ranks, share_of_others(ranks)); }

/// By axis of the grid. Excludes the few scalars of losses, norms and counters.
struct StepTraffic {
  Bytes tensor_parallel{}, context_parallel{}, data_parallel{}, pipeline{}, expert_parallel{};

  StepTraffic& operator+=(const StepTraffic& other) {
    tensor_parallel += other.tensor_parallel;
    context_parallel += other.context_parallel;
    data_parallel += other.data_parallel;
    pipeline += other.pipeline;
    expert_parallel += other.expert_parallel;
    return *this;
  }
};

inline StepTraffic operator+(StepTraffic a, const StepTraffic& b) { return a += b; }
inline StepTraffic operator*(index_t times, const StepTraffic& t) {
  return {times * t.tensor_parallel, times * t.context_parallel, times * t.data_parallel, times * t.pipeline,
          times * t.expert_parallel};
}

}  // namespace nanotron::comm
