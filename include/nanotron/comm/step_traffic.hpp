#pragma once

// Bytes that a rank moves in one training step. Whatever communicates tells its own when it is planned: sizes of groups
// suffice (Group::planned), nothing is sent. A step is the sum of its parts.

#include "nanotron/base/types.hpp"

namespace nanotron::comm {

/// counted: what the rank hands over, as comm::Traffic counts it: n elements for an all-reduce of n or an all-gather of n
/// from each rank, all n x ranks for a reduce-scatter. sent: what it sends to others where an all-reduce, a
/// reduce-scatter and an all-gather are rings (as NCCL's and MPI's of large messages are, or as little as these) and an
/// all-to-all goes directly.
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
inline Bytes operator*(index_t times, const Bytes& b) { return {times * b.counted, static_cast<double>(times) * b.sent}; }

inline double share_of_others(index_t ranks) { return static_cast<double>(ranks - 1) / static_cast<double>(ranks); }
/// Nothing in a group of one rank; messages go to another rank.
inline Bytes share_sent(index_t bytes, index_t ranks, double share) {
  return ranks == 1 ? Bytes{} : Bytes{bytes, static_cast<double>(bytes) * share};
}
inline Bytes message_bytes(index_t bytes) { return {bytes, static_cast<double>(bytes)}; }
/// bytes: of the whole on each rank.
inline Bytes all_reduce_bytes(index_t bytes, index_t ranks) { return share_sent(bytes, ranks, 2.0 * share_of_others(ranks)); }
inline Bytes reduce_scatter_bytes(index_t bytes, index_t ranks) { return share_sent(bytes, ranks, share_of_others(ranks)); }
/// bytes: of one rank's part.
inline Bytes all_gather_bytes(index_t bytes, index_t ranks) {
  return share_sent(bytes, ranks, static_cast<double>(ranks - 1));
}
/// bytes: to all ranks, this one too.
inline Bytes all_to_all_bytes(index_t bytes, index_t ranks) { return share_sent(bytes, ranks, share_of_others(ranks)); }
/// bytes: of the whole; one rank sends it to all others, each of `ranks` in turn.
inline Bytes broadcast_bytes(index_t bytes, index_t ranks) { return share_sent(bytes, ranks, share_of_others(ranks)); }

/// By the axes of the grid; without the few scalars of losses, norms and counters.
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
