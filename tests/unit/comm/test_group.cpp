// ranks: 1 2 4
#include <gtest/gtest.h>

#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/collectives.hpp"
#include "support/world.hpp"

namespace nanotron::comm {
namespace {

TEST(Communicator, MovesSplitsAndKnowsItsNode) {
  Communicator world = Communicator::duplicate(test::world());
  const int rank = world.rank(), size = world.size();
  Communicator moved = std::move(world);
  EXPECT_EQ(world.get(), MPI_COMM_NULL);
  EXPECT_EQ(moved.rank(), rank);
  const Communicator backwards = moved.split(0, -rank);
  EXPECT_EQ(backwards.rank(), size - 1 - rank);
  const Communicator alone = moved.split(rank, 0);
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(moved.split_by_node().size(), size);
}

TEST(Group, OfOneRankHasNoTransport) {
  const Communicator world = Communicator::duplicate(test::world());
  Group group(world.split(world.rank(), 0), Transport::mpi);
  EXPECT_EQ(group.path(), "none");
  EXPECT_EQ(group.staging_bytes(), 0u);
  double value = 3.0;
  all_reduce(group, &value, 1, ReduceOp::sum);
  EXPECT_TRUE(start_all_reduce(group, &value, 1, ReduceOp::sum).test());
  EXPECT_EQ(value, 3.0);
}

TEST(Group, RanksOfOneNodeShareMemory) {
  Group group(Communicator::duplicate(test::world()), Transport::mpi);
  if (group.size() == 1) return;
  EXPECT_EQ(group.path(), "shared memory");
  EXPECT_GT(group.staging_bytes(), 0u);
  Group moved = std::move(group);
  EXPECT_EQ(sum(moved, 1.0), moved.size());
}

TEST(Transport, OnTheHostItIsMpi) {
  const Communicator world = Communicator::duplicate(test::world());
#ifndef NANOTRON_WITH_GPU
  EXPECT_EQ(choose_transport(deck::Backend::automatic, world), Transport::mpi);
  EXPECT_EQ(choose_transport(deck::Backend::mpi, world), Transport::mpi);
  EXPECT_EQ(gpu_of_rank(world), -1);
  try {
    choose_transport(deck::Backend::nccl, world);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::deck_error);
  }
#else
  EXPECT_NE(choose_transport(deck::Backend::automatic, world), Transport::mpi);
#endif
}

}  // namespace
}  // namespace nanotron::comm
