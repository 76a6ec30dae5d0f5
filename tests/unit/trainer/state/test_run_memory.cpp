// ranks: 1 2 4
// Symmetric memory: ranks of a group whose plans differ are told so on all ranks; stages of a pipeline may differ.
#include <gtest/gtest.h>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/trainer/state/run_resources.hpp"
#include "support/world.hpp"

namespace nanotron::trainer {
namespace {

MemoryPlan plan_of(std::initializer_list<index_t> sizes) {
  Arena planning = Arena::planning();
  for (const index_t n : sizes) planning.take<double>(MemoryKind::workspace, n);
  return planning.plan();
}

class SymmetricMemory : public testing::Test {
 protected:
  const comm::Communicator world_ = comm::Communicator::duplicate(test::world());
  deck::Config config_;
  void SetUp() override { config_.parallel.register_memory = deck::MemoryRegistration::symmetric; }
};

TEST_F(SymmetricMemory, HasOneLayoutInAGroup) {
  if (world_.size() == 1) return;
  comm::ProcessGrid grid(world_, {.dp = world_.size() / 2, .tp = 2}, comm::Transport::mpi);
  const MemoryPlan same = plan_of({100, 7}), swapped = plan_of({7, 100});
  EXPECT_EQ(same.total(), swapped.total());
  RunMemory memory(config_, grid, same);
  EXPECT_NO_THROW(memory.arena_of(plan_of({100})));
  const MemoryPlan& mine = world_.rank() == 0 ? swapped : same;
  EXPECT_THROW(memory.arena_of(mine), Error);
  EXPECT_THROW(RunMemory(config_, grid, mine), Error);
  config_.parallel.register_memory = deck::MemoryRegistration::local;
  EXPECT_NO_THROW(RunMemory(config_, grid, mine));
}

TEST_F(SymmetricMemory, MayDifferBetweenStages) {
  comm::ProcessGrid grid(world_, {.pp = world_.size()}, comm::Transport::mpi);
  EXPECT_NO_THROW(RunMemory(config_, grid, plan_of({1 + 1000 * world_.rank()})));
}

}  // namespace
}  // namespace nanotron::trainer
