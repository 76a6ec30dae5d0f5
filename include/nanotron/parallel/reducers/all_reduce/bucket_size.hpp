#pragma once

// The size of a gradient bucket from the speed of the all-reduce. P bytes of gradients, n bytes per bucket, latency
// a in seconds, bandwidth w in bytes per second. Every bucket costs its latency, and nothing overlaps the last one:
//
//   time = (P / n) a + a + n / w      minimal at      n = sqrt(P a w)

#include "nanotron/comm/group.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::parallel {

/// An all-reduce of n bytes takes latency + n / bytes_per_second.
struct AllReduceSpeed {
  double latency = 0.0;
  double bytes_per_second = 0.0;
};

/// Measures all-reduces of a few KiB and a few MiB in a buffer of its own, the fastest of several each. Collective over
/// the group, of at least two ranks.
AllReduceSpeed measure_all_reduce(comm::Group& group, Device& device);

/// n above in MiB, for P = bytes: a power of two from 1/4 to 1024.
double bucket_megabytes(const AllReduceSpeed& speed, double bytes);

}  // namespace nanotron::parallel
