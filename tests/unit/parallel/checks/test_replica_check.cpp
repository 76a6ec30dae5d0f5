// ranks: 1 2 3 4
#include <gtest/gtest.h>

#include "nanotron/base/error.hpp"
#include "nanotron/parallel/checks/replica_check.hpp"
#include "support/world.hpp"

namespace nanotron::parallel {
namespace {

class Replicas : public testing::Test {
 protected:
  std::string message(std::uint64_t hash, std::int64_t step) {
    try {
      check_.require_equal(hash, step);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::system_error);
      return error.what();
    }
    return "";
  }

  comm::Group world_{comm::Communicator::duplicate(test::world()), comm::Transport::mpi};
  comm::Group dp_{comm::Communicator::duplicate(test::world()), comm::Transport::mpi};
  ReplicaCheck check_{dp_, "data-parallel", world_, 10};
};

TEST_F(Replicas, OfEqualHashesPass) {
  EXPECT_EQ(check_.has_replicas(), world_.size() > 1);
  EXPECT_TRUE(check_.is_due(20));
  EXPECT_FALSE(check_.is_due(21));
  EXPECT_FALSE(ReplicaCheck(dp_, "data-parallel", world_, 0).is_due(20));
  EXPECT_EQ(message(17, 0), "");
  EXPECT_EQ(message(18, 1), "");
}

TEST_F(Replicas, TheOddOneIsNamedOnEveryRank) {
  if (world_.size() < 2) return;
  EXPECT_EQ(message(5, 40), "");
  const int odd = world_.size() - 1;
  const std::string text = message(world_.rank() == odd ? 6 : 5, 50);
  EXPECT_NE(text.find("rank " + std::to_string(odd)), std::string::npos) << text;
  EXPECT_NE(text.find("after step 50; they were equal after step 40"), std::string::npos) << text;
  if (world_.size() == 4) {
    EXPECT_NE(text.find("rank 3 against ranks 0, 1, 2"), std::string::npos) << text;
  }
}

TEST_F(Replicas, WithoutAMajorityAllSidesAreNamed) {
  if (world_.size() != 4) return;
  const std::string text = message(world_.rank() % 2 == 0 ? 1 : 2, 3);
  EXPECT_NE(text.find("ranks 0, 2 against ranks 1, 3"), std::string::npos) << text;
}

// Two groups of two: a fault in one of them stops the ranks of the other too.
TEST_F(Replicas, AFaultInOneGroupStopsTheWorld) {
  if (world_.size() != 4) return;
  comm::Group pair(world_.communicator().split(world_.rank() / 2, world_.rank()), comm::Transport::mpi);
  ReplicaCheck check(pair, "data-parallel", world_, 1);
  check.require_equal(7, 1);
  EXPECT_THROW(check.require_equal(world_.rank() == 3 ? 8 : 7, 2), Error);
}

}  // namespace
}  // namespace nanotron::parallel
