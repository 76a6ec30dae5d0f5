#pragma once

// Bytes of a rank in collectives: counted as comm::Traffic does, and as sent. Private to the parallel layer.

#include "nanotron/base/types.hpp"

namespace nanotron::parallel::detail {

/// counted: what the rank hands over. sent: what it sends to others where an all-reduce, a reduce-scatter and an all-gather
/// are rings (as NCCL's and MPI's of large messages are, or as little as these) and an all-to-all goes directly.
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

/// `share` of what is counted is sent.
inline Bytes counted(index_t bytes, double share) { return {bytes, static_cast<double>(bytes) * share}; }

inline Bytes message(index_t bytes) { return counted(bytes, 1.0); }
inline double share_of_others(index_t ranks) { return static_cast<double>(ranks - 1) / static_cast<double>(ranks); }
/// bytes: of the whole on each rank.
inline Bytes all_reduce(index_t bytes, index_t ranks) { return counted(bytes, 2.0 * share_of_others(ranks)); }
inline Bytes reduce_scatter(index_t bytes, index_t ranks) { return counted(bytes, share_of_others(ranks)); }
/// bytes: of one rank's part.
inline Bytes all_gather(index_t bytes, index_t ranks) { return counted(bytes, static_cast<double>(ranks - 1)); }
/// bytes: to all ranks, this one too.
inline Bytes all_to_all(index_t bytes, index_t ranks) { return counted(bytes, share_of_others(ranks)); }

}  // namespace nanotron::parallel::detail
