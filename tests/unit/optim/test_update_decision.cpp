// ranks: 1 2 3
#include "nanotron/optim/update_decision.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "nanotron/comm/process_grid.hpp"
#include "support/device_values.hpp"
#include "support/world.hpp"

namespace nanotron::optim {
namespace {

using kernels::UpdateScalars;

TEST(ClipFactor, IsPytorchs) {
  EXPECT_EQ(kernels::clip_factor(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(kernels::clip_factor(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(kernels::clip_factor(1e9, 0.0), 1.0);
  EXPECT_EQ(kernels::clip_factor(INFINITY, 1.0), 0.0);
}

// All ranks are in tp, and each owns elements 0 to 2 and 5 to 8 of ten.
class Decision : public testing::Test {
 protected:
  template <class M>
  DecisionSetup setup() {
    return {.norm = {{{{0, 3}, {5, 9}}, {&grid_.data_groups(comm::ReplicaSet::data_parallel).shard}}},
            .model = {&grid_.tp(), &grid_.pp()},
            .loss = {&grid_.tp(), &grid_.pp()}};
  }
  template <class M>
  UpdateScalars decide(const std::vector<double>& losses, const std::vector<M>& gradient,
                       const kernels::UpdateLimits& limits) {
    Arena planning = Arena::planning();
    const UpdateDecision<M> planned(setup<M>(), planning);
    const Vector<M> g = planning.take<M>(MemoryKind::workspace, 10);
    planning.take<double>(MemoryKind::workspace, 3);
    Arena arena(planning.plan());
    UpdateDecision<M> decision(setup<M>(), arena);
    const Vector<M> gradients = arena.take<M>(MemoryKind::workspace, static_cast<index_t>(g.extent(0)));
    const Vector<double> rows = arena.take<double>(MemoryKind::workspace, 3);
    test::set_values(gradients, gradient);
    test::set_values(rows, losses);
    decision.decide(device_, rows, gradients, limits);
    EXPECT_EQ(decision.loss_sum(device_, rows) / limits.targets, decision.read(device_).loss);
    return decision.read(device_);
  }

  const comm::Communicator world_ = comm::Communicator::duplicate(test::world());
  const int ranks_ = world_.size();
  comm::ProcessGrid grid_{world_, {.tp = ranks_}, test::device_transport()};
  Timers timers_;
  Device device_{timers_};
  const std::vector<double> losses_{1.0, 2.0, 3.0};
};

TEST_F(Decision, CountsOwnedElementsAndLossesOfAllRanks) {
  const UpdateScalars s = decide<double>(losses_, std::vector<double>(10, 2.0), {.targets = 4.0, .max_norm = 1.0});
  EXPECT_EQ(s.loss, 6.0 * ranks_ / 4.0);
  EXPECT_EQ(s.norm, std::sqrt(7 * 4.0 * ranks_));
  EXPECT_EQ(s.gradient_scale, 1.0 / (s.norm + 1e-6));
  EXPECT_TRUE(s.updates);
}

TEST_F(Decision, SkipsWhatIsNotFiniteOnAnyRank) {
  const bool last = world_.rank() == ranks_ - 1;
  for (const double bad : {std::nan(""), static_cast<double>(INFINITY), static_cast<double>(-INFINITY)}) {
    std::vector<float> gradient(10, 2.0f);
    if (last) gradient[6] = static_cast<float>(bad);
    EXPECT_FALSE(decide<float>(losses_, gradient, {.max_norm = 1.0}).updates);
    gradient[6] = 2.0f;
    gradient[4] = static_cast<float>(bad);  // nobody owns it
    EXPECT_TRUE(decide<float>(losses_, gradient, {.max_norm = 1.0}).updates);
    std::vector<double> losses = losses_;
    if (last) losses[1] = bad;
    EXPECT_FALSE(decide<float>(losses, std::vector<float>(10, 2.0f), {.max_norm = 1.0}).updates);
  }
}

// 1e20 is a float and its square is not: without clipping AdamW's second moment would be infinite.
TEST_F(Decision, SkipsWhatTheMasterTypeCannotSquare) {
  const std::vector<float> large(10, 1e20f);
  EXPECT_FALSE(decide<float>(losses_, large, {}).updates);
  EXPECT_TRUE(decide<float>(losses_, large, {.max_norm = 1.0}).updates);
  EXPECT_TRUE(decide<double>(losses_, std::vector<double>(10, 1e20), {}).updates);
}

}  // namespace
}  // namespace nanotron::optim
