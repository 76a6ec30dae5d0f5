// ranks: 1 2 3
// What becomes of given gradients on their way through each sum that nothing shards.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "nanotron/base/random.hpp"
#include "nanotron/parallel/reducers/power_sgd/low_rank.hpp"
#include "support/differences.hpp"
#include "unit/parallel/reducers/reducer_subject.hpp"

namespace nanotron::parallel {
namespace {

using Values = std::vector<double>;

class Reduced : public testing::Test {
 protected:
  using Subject = test::ReducerSubject;

  std::unique_ptr<Subject> make() { return std::make_unique<Subject>(config_, grid_, device_); }
  LowRankPlan plan_of(const Subject& s) const {
    return low_rank_plan(s.table(), s.table().dense(), config_.parallel.powersgd_rank);
  }

  // Of one replica in one step.
  static Values random_gradient(index_t size, int replica, int step) {
    Values g(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < g.size(); ++i)
      g[i] = 1e-3 * normal(static_cast<std::uint64_t>(replica), 17, i, static_cast<std::uint32_t>(step));
    return g;
  }

  Values over_ranks(Values v) const {
    MPI_Allreduce(MPI_IN_PLACE, v.data(), static_cast<int>(v.size()), MPI_DOUBLE, MPI_SUM, replicas_.mpi());
    return v;
  }

  // Of a sum in a narrow type: NCCL rounds each partial one.
  int roundings() const { return replicas_.transport() == comm::Transport::nccl ? replicas_.size() - 1 : 1; }

  // The errors at the places of their gradients.
  Values errors_of(Subject& s) const {
    Values flat(static_cast<std::size_t>(s.table().size), 0.0);
    const auto carried = s.reducers().persistent_state();
    if (carried.empty()) return flat;
    const Values packed = test::values_of(carried.front().values.front().values);
    for (const LowRankUnit& unit : plan_of(s).units) {
      for (const LowRankMatrix& m : unit.matrices)
        std::copy_n(packed.begin() + m.error, m.rows * m.columns, flat.begin() + m.gradient);
    }
    return flat;
  }

  comm::ProcessGrid grid_{
      comm::Communicator::duplicate(test::world()), {.dp = test::ranks()}, test::device_transport()};
  comm::Group& replicas_ = grid_.data_parallel();
  Timers timers_;
  Device device_{timers_};
  deck::Config config_ = Subject::config(replicas_.size());
};

TEST_F(Reduced, OfBf16RoundOnTheWayIn) {
  config_.parallel.compression = deck::Compression::bf16;
  const auto s = make();
  const Values mine = random_gradient(s->table().size, replicas_.rank(), 0);
  const Values exact = over_ranks(mine), sum = s->through(mine);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    double size = 0.0;
    for (int r = 0; r < replicas_.size(); ++r) size += std::abs(1e-3 * normal(static_cast<std::uint64_t>(r), 17, i));
    ASSERT_LE(std::abs(sum[i] - exact[i]), replicas_.size() == 1 ? 0.0 : 0x1p-8 * (1 + roundings()) * size) << i;
  }
}

// Neither tiny nor huge gradients are lost, and what is broken on one replica shows on all.
TEST_F(Reduced, OfFp16AreScaled) {
  config_.parallel.compression = deck::Compression::fp16;
  const auto s = make();
  const index_t size = s->table().size;
  for (const double scale : {0x1p-90, 1.0, 0x1p90}) {
    Values mine = random_gradient(size, replicas_.rank(), 0);
    for (double& g : mine) g *= scale;
    const Values exact = over_ranks(mine), sum = s->through(mine);
    double most = 0.0;
    for (const double x : exact) most = test::larger(most, std::abs(x));
    for (std::size_t i = 0; i < exact.size(); ++i) {
      double parts = std::abs(exact[i]);
      for (int r = 0; r < replicas_.size(); ++r)
        parts += scale * std::abs(1e-3 * normal(static_cast<std::uint64_t>(r), 17, i));
      const double bound = parts * 0x1p-11 * roundings() + most * 0x1p-34;
      ASSERT_LE(std::abs(sum[i] - exact[i]), replicas_.size() == 1 ? 0.0 : bound) << scale << " " << i;
    }
  }
  Values broken = random_gradient(size, replicas_.rank(), 0);
  if (replicas_.rank() == 0) broken[static_cast<std::size_t>(size) / 3] = std::nan("");
  EXPECT_FALSE(std::isfinite(s->through(broken)[static_cast<std::size_t>(size) / 3]));
}

// sum over steps of what was sent + errors left = sum over steps and ranks of the gradients.
TEST_F(Reduced, OfPowerSgdLoseNothing) {
  config_.parallel.compression = deck::Compression::powersgd;
  config_.parallel.powersgd_rank = 2;
  for (const bool overlap : {true, false}) {
    config_.parallel.overlap = overlap;
    const auto s = make();
    Values sent(static_cast<std::size_t>(s->table().size), 0.0), wanted = sent;
    double left_out = 0.0;
    for (int step = 0; step < 5; ++step) {
      const Values mine = random_gradient(s->table().size, replicas_.rank(), step);
      const Values exact = over_ranks(mine), sum = s->through(mine);
      for (std::size_t i = 0; i < sent.size(); ++i) sent[i] += sum[i], wanted[i] += exact[i];
      left_out = test::largest_difference(sum, exact);
    }
    EXPECT_EQ(left_out > 1e-4, replicas_.size() > 1) << "a random matrix has no rank of 2";
    const Values late = over_ranks(errors_of(*s));
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] += late[i];
    EXPECT_LT(test::largest_difference(sent, wanted), 1e-15);
  }
}

TEST_F(Reduced, OfPowerSgdAreExactForMatricesOfThatRank) {
  config_.parallel.compression = deck::Compression::powersgd;
  config_.parallel.powersgd_rank = 3;
  const auto s = make();
  Values mine(static_cast<std::size_t>(s->table().size), 0.0);
  for (const LowRankUnit& unit : plan_of(*s).units) {
    for (const LowRankMatrix& m : unit.matrices) {
      for (index_t i = 0; i < m.rows * m.columns; ++i) {
        for (int k = 0; k < 3; ++k) {  // columns of the ranks in common, so that the sum has no more
          mine[m.gradient + i] +=
              std::sin(1.0 + k * (i / m.columns + 1)) * normal(replicas_.rank(), 5 + k, i % m.columns);
        }
      }
    }
  }
  const Values exact = over_ranks(mine);
  EXPECT_LT(test::largest_difference(s->through(mine), exact), 1e-12);
  EXPECT_LT(test::largest_difference(s->through(mine), exact), 1e-12) << "from a warm start";
}

// Where two thin matrices are no smaller than the one it travels as it is.
TEST_F(Reduced, OfPowerSgdOfFullRankAreThoseWithout) {
  config_.parallel.compression = deck::Compression::powersgd;
  config_.parallel.powersgd_rank = 24;
  const auto s = make();
  EXPECT_EQ(plan_of(*s).errors, 0);
  EXPECT_EQ(low_rank_elements(plan_of(*s), s->table().dense()), s->table().size);
  const Values mine = random_gradient(s->table().size, replicas_.rank(), 0);
  config_.parallel.compression = deck::Compression::none;
  const auto plain = make();
  EXPECT_EQ(s->through(mine), plain->through(mine));
}

TEST_F(Reduced, OfPowerSgdStartAnew) {
  config_.parallel.compression = deck::Compression::powersgd;
  config_.parallel.powersgd_rank = 2;
  const auto s = make();
  const index_t size = s->table().size;
  Values mine = random_gradient(size, replicas_.rank(), 0);
  const Values first = s->through(mine);
  Values broken = mine;
  broken[static_cast<std::size_t>(size) / 2] = std::nan("");
  const Values bad = s->through(broken);
  EXPECT_TRUE(std::ranges::any_of(bad, [](double x) { return !std::isfinite(x); })) << "what is broken shows";
  s->reducers().reset();
  EXPECT_EQ(s->through(mine), first);
}

}  // namespace
}  // namespace nanotron::parallel
