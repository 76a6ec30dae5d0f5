#include "nanotron/parallel/reducers/all_reduce/bucket_size.hpp"

#include <algorithm>
#include <cmath>

#include "nanotron/comm/collectives.hpp"

namespace nanotron::parallel {
namespace {

constexpr int repeats = 7;
constexpr std::size_t few = 1024, many = 2 * 1024 * 1024;  // floats

}  // namespace

AllReduceSpeed measure_all_reduce(comm::Group& group, Device& device) {
  const Kokkos::View<float*, MemorySpace> data("all_reduce_speed", many);
  device.fence();
  const auto least = [&](std::size_t n) {
    double seconds = 1e300;
    for (int i = 0; i < repeats; ++i) {
      comm::barrier(group);
      const double begin = wall_seconds();
      comm::all_reduce(group, data.data(), n, comm::ReduceOp::sum, device.stream());
      device.fence();
      seconds = std::min(seconds, wall_seconds() - begin);
    }
    return comm::max(group, seconds);
  };
  least(few);  // warm-up: opens connections
  const double quick = least(few), slow = least(many);
  const double a_byte = std::max(slow - quick, 1e-9) / static_cast<double>((many - few) * sizeof(float));
  const double latency = std::max(quick - a_byte * static_cast<double>(few * sizeof(float)), 1e-7);
  return {.latency = latency, .bytes_per_second = 1.0 / a_byte};
}

double bucket_megabytes(const AllReduceSpeed& speed, double bytes) {
  const double megabytes = std::sqrt(bytes * speed.latency * speed.bytes_per_second) / (1024.0 * 1024.0);
  return std::exp2(std::round(std::log2(std::clamp(megabytes, 0.25, 1024.0))));
}

}  // namespace nanotron::parallel
