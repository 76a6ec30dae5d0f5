// ranks: 2
#include <gtest/gtest.h>

#include "nanotron/parallel/reducers/all_reduce/bucket_size.hpp"
#include "support/world.hpp"

namespace nanotron::parallel {
namespace {

TEST(BucketSize, IsTheRootOfSizeLatencyAndSpeed) {
  // sqrt(2^32 bytes x 2^-14 s x 2^30 bytes/s) = 2^24 bytes
  EXPECT_EQ(bucket_megabytes({.latency = 0x1p-14, .bytes_per_second = 0x1p30}, 0x1p32), 16.0);
  EXPECT_EQ(bucket_megabytes({.latency = 0x1p-12, .bytes_per_second = 0x1p30}, 0x1p32), 32.0);
  EXPECT_EQ(bucket_megabytes({.latency = 0x1p-14, .bytes_per_second = 0x1p30}, 0x1p28), 4.0);
}

TEST(BucketSize, HasBounds) {
  EXPECT_EQ(bucket_megabytes({.latency = 1e-7, .bytes_per_second = 1e6}, 1e3), 0.25);
  EXPECT_EQ(bucket_megabytes({.latency = 1.0, .bytes_per_second = 1e12}, 1e12), 1024.0);
}

// That it is the least of the cost it claims to minimise, among powers of two.
TEST(BucketSize, CostsLess) {
  const AllReduceSpeed speed{.latency = 3e-5, .bytes_per_second = 2.5e9};
  const double bytes = 7e8;
  const auto cost = [&](double mb) {
    return bytes / (mb * 1048576.0) * speed.latency + mb * 1048576.0 / speed.bytes_per_second;
  };
  const double best = bucket_megabytes(speed, bytes);
  EXPECT_LE(cost(best), cost(2 * best));
  EXPECT_LE(cost(best), cost(best / 2));
}

TEST(BucketSize, IsMeasured) {
  Timers timers;
  Device device(timers);
  comm::Group group(comm::Communicator::duplicate(test::world()), test::device_transport());
  const AllReduceSpeed speed = measure_all_reduce(group, device);
  EXPECT_GT(speed.latency, 0.0);
  EXPECT_GT(speed.bytes_per_second, 1e6);
  EXPECT_LT(speed.bytes_per_second, 1e13);
}

}  // namespace
}  // namespace nanotron::parallel
