// ranks: 1 2 3
#include "nanotron/optim/grad_clip.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "nanotron/comm/process_grid.hpp"
#include "support/world.hpp"

namespace nanotron::optim {
namespace {

TEST(ClipFactor, IsPytorchs) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(clip_factor(1e9, 0.0), 1.0);
}

TEST(GlobalNorm, CountsOwnedElementsOfAllRanks) {
  const comm::Communicator world = comm::Communicator::duplicate(test::world());
  comm::ProcessGrid grid(world, {.tp = world.size()}, test::device_transport());
  Timers timers;
  Device device(timers);
  Kokkos::View<double*, MemorySpace> gradient("gradient", 10);
  Kokkos::deep_copy(gradient, 2.0);
  const std::vector<NormPart> parts{{{{0, 3}, {5, 9}}, {&grid.data_groups(comm::ReplicaSet::data_parallel).shard}}};
  const double norm = global_norm<double>(device, grid.model(), parts, Vector<const double>(gradient.data(), 10));
  EXPECT_DOUBLE_EQ(norm, std::sqrt(7 * 4.0 * world.size()));
}

}  // namespace
}  // namespace nanotron::optim
