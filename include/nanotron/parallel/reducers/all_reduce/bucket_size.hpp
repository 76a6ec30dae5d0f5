#pragma once

// The size of a bucket of gradients from the speed of the all-reduce. With buckets of n of P bytes, a seconds of
// latency and b bytes a second, every bucket costs its latency, and nothing hides the last one:
//
//   P / n a + a + n / b      is least at      n = sqrt(P a b)

#include "nanotron/comm/group.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::parallel {

/// An all-reduce of n bytes takes latency + n / bytes_per_second.
struct AllReduceSpeed {
  double latency = 0.0;
  double bytes_per_second = 0.0;
};

/// From the quickest of a few short and long ones, on memory of its own. Collective over a group of two and more.
AllReduceSpeed measure_all_reduce(comm::Group& group, Device& device);

/// The n above of P = `bytes` in MiB: a power of two, from 1/4 to 1024.
double bucket_megabytes(const AllReduceSpeed& speed, double bytes);

}  // namespace nanotron::parallel
