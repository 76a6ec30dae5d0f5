// ranks: 1 2 3
// What becomes of given gradients on their way through each sum that nothing shards.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <list>

#include "nanotron/base/random.hpp"
#include "nanotron/parallel/reducers/gradient_sum.hpp"
#include "support/world.hpp"

namespace nanotron::parallel {
namespace {

using Values = std::vector<double>;

class Sums : public testing::Test {
 protected:
  Sums()
      : replicas_(comm::Communicator::duplicate(test::world()), comm::Transport::mpi),
        alone_(comm::Communicator::duplicate(MPI_COMM_SELF), comm::Transport::mpi) {
    setup_ = {.model = {.hidden_size = 24, .num_hidden_layers = 2, .num_attention_heads = 3, .num_key_value_heads = 1,
                        .head_dim = 6, .intermediate_size = 37, .vocab_size = 41, .qkv_bias = true},
              .sequences = 1,
              .length = 4,
              .key_length = 4};
    config_.parallel.dp = replicas_.size();
  }

  // A model, its memory and the sum of its gradients.
  struct Subject {
    Subject(Sums& s, Arena& arena)
        : model(s.setup_, s.alone_, s.device_, arena), memory(s.config_, model.table(), arena) {}
    model::Transformer<double> model;
    SumMemory<double> memory;
    std::unique_ptr<GradientSum<double>> sum;
  };

  std::unique_ptr<Subject> make() {
    Arena planning = Arena::planning();
    static_cast<void>(Subject(*this, planning));
    arenas_.emplace_back(planning.plan());
    auto subject = std::make_unique<Subject>(*this, arenas_.back());
    subject->sum = make_gradient_sum<double>({}, subject->model, subject->memory, {replicas_, alone_, alone_},
                                             {replicas_, alone_, alone_}, device_,
                                             {.megabytes = 0.002, .overlap = config_.parallel.overlap, .compression = config_.parallel.compression});
    return subject;
  }

  // Of one replica in one step.
  static Values random_gradient(index_t size, int replica, int step) {
    Values g(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < g.size(); ++i)
      g[i] = 1e-3 * normal(static_cast<std::uint64_t>(replica), 17, i, static_cast<std::uint32_t>(step));
    return g;
  }

  static Values pull(const Vector<double>& v) {
    const auto host = Kokkos::create_mirror_view(v);
    Kokkos::deep_copy(host, v);
    return Values(host.data(), host.data() + host.size());
  }

  // This rank's gradients through the sum.
  static Values through(Subject& s, const Values& gradient) {
    const Vector<double>& g = s.model.parameters().gradient;
    s.sum->begin_step();
    const auto host = Kokkos::create_mirror_view(g);
    std::copy(gradient.begin(), gradient.end(), host.data());
    Kokkos::deep_copy(g, host);
    for (index_t u = static_cast<index_t>(s.model.table().units.size()) - 1; u >= 0; --u) {
      s.sum->begin(u);
      s.sum->end(u);
    }
    s.sum->finish();
    return pull(g);
  }

  Values over_ranks(Values v) const {
    MPI_Allreduce(MPI_IN_PLACE, v.data(), static_cast<int>(v.size()), MPI_DOUBLE, MPI_SUM, replicas_.mpi());
    return v;
  }

  static double worst(const Values& a, const Values& b) {
    double difference = 0.0;
    for (std::size_t i = 0; i < b.size(); ++i) difference = std::max(difference, std::abs(a.at(i) - b[i]));
    return difference;
  }

  // The errors at the places of their gradients.
  static Values errors_of(const Subject& s) {
    const Values packed = pull(s.memory.error);
    Values flat(static_cast<std::size_t>(s.model.table().size), 0.0);
    for (const LowRankUnit& unit : s.memory.low_rank.units) {
      for (const LowRankMatrix& m : unit.matrices)
        std::copy_n(packed.begin() + m.error, m.rows * m.columns, flat.begin() + m.gradient);
    }
    return flat;
  }

  comm::Group replicas_, alone_;
  Timers timers_;
  Device device_{timers_};
  model::TransformerSetup setup_;
  deck::Config config_;
  std::list<Arena> arenas_;
};

TEST_F(Sums, OfBf16RoundOnTheWayIn) {
  config_.parallel.compression = deck::Compression::bf16;
  const auto s = make();
  const Values mine = random_gradient(s->model.table().size, replicas_.rank(), 0);
  const Values exact = over_ranks(mine), sum = through(*s, mine);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    double size = 0.0;
    for (int r = 0; r < replicas_.size(); ++r) size += std::abs(1e-3 * normal(static_cast<std::uint64_t>(r), 17, i));
    ASSERT_LE(std::abs(sum[i] - exact[i]), replicas_.size() == 1 ? 0.0 : 0x1p-7 * size) << i;
  }
}

// Neither tiny nor huge gradients are lost, and what is broken on one replica shows on all.
TEST_F(Sums, OfFp16AreScaled) {
  config_.parallel.compression = deck::Compression::fp16;
  const auto s = make();
  const index_t size = s->model.table().size;
  for (const double scale : {0x1p-90, 1.0, 0x1p90}) {
    Values mine = random_gradient(size, replicas_.rank(), 0);
    for (double& g : mine) g *= scale;
    const Values exact = over_ranks(mine), sum = through(*s, mine);
    double most = 0.0;
    for (const double x : exact) most = std::max(most, std::abs(x));
    for (std::size_t i = 0; i < exact.size(); ++i) {
      double parts = std::abs(exact[i]);
      for (int r = 0; r < replicas_.size(); ++r) parts += scale * std::abs(1e-3 * normal(static_cast<std::uint64_t>(r), 17, i));
      const double bound = parts * 0x1p-11 + most * 0x1p-34;
      ASSERT_LE(std::abs(sum[i] - exact[i]), replicas_.size() == 1 ? 0.0 : bound) << scale << " " << i;
    }
  }
  Values broken = random_gradient(size, replicas_.rank(), 0);
  if (replicas_.rank() == 0) broken[static_cast<std::size_t>(size) / 3] = std::nan("");
  EXPECT_FALSE(std::isfinite(through(*s, broken)[static_cast<std::size_t>(size) / 3]));
}

// sum over steps of what was sent + errors left = sum over steps and ranks of the gradients.
TEST_F(Sums, OfPowerSgdLoseNothing) {
  config_.parallel.compression = deck::Compression::powersgd;
  config_.parallel.powersgd_rank = 2;
  for (const bool overlap : {true, false}) {
    config_.parallel.overlap = overlap;
    const auto s = make();
    Values sent(static_cast<std::size_t>(s->model.table().size), 0.0), wanted = sent;
    double left_out = 0.0;
    for (int step = 0; step < 5; ++step) {
      const Values mine = random_gradient(s->model.table().size, replicas_.rank(), step);
      const Values exact = over_ranks(mine), sum = through(*s, mine);
      for (std::size_t i = 0; i < sent.size(); ++i) sent[i] += sum[i], wanted[i] += exact[i];
      left_out = worst(sum, exact);
    }
    EXPECT_EQ(left_out > 1e-4, replicas_.size() > 1) << "a random matrix has no rank of 2";
    const Values late = over_ranks(errors_of(*s));
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] += late[i];
    EXPECT_LT(worst(sent, wanted), 1e-15);
  }
}

TEST_F(Sums, OfPowerSgdAreExactForMatricesOfThatRank) {
  config_.parallel.compression = deck::Compression::powersgd;
  config_.parallel.powersgd_rank = 3;
  const auto s = make();
  Values mine(static_cast<std::size_t>(s->model.table().size), 0.0);
  for (const LowRankUnit& unit : s->memory.low_rank.units) {
    for (const LowRankMatrix& m : unit.matrices) {
      for (index_t i = 0; i < m.rows * m.columns; ++i) {
        for (int k = 0; k < 3; ++k) {  // columns of the ranks in common, so that the sum has no more
          mine[m.gradient + i] += std::sin(1.0 + k * (i / m.columns + 1)) * normal(replicas_.rank(), 5 + k, i % m.columns);
        }
      }
    }
  }
  const Values exact = over_ranks(mine);
  EXPECT_LT(worst(through(*s, mine), exact), 1e-12);
  EXPECT_LT(worst(through(*s, mine), exact), 1e-12) << "from a warm start";
}

// Where two thin matrices are no smaller than the one it travels as it is.
TEST_F(Sums, OfPowerSgdOfFullRankAreThoseWithout) {
  config_.parallel.compression = deck::Compression::powersgd;
  config_.parallel.powersgd_rank = 24;
  const auto s = make();
  EXPECT_EQ(s->memory.low_rank.errors, 0);
  if (replicas_.size() > 1) {
    EXPECT_EQ(low_rank_elements(s->memory.low_rank, s->model.table().dense_section()), s->model.table().size);
  }
  const Values mine = random_gradient(s->model.table().size, replicas_.rank(), 0);
  config_.parallel.compression = deck::Compression::none;
  const auto plain = make();
  EXPECT_EQ(through(*s, mine), through(*plain, mine));
}

TEST_F(Sums, OfPowerSgdForget) {
  config_.parallel.compression = deck::Compression::powersgd;
  config_.parallel.powersgd_rank = 2;
  const auto s = make();
  const index_t size = s->model.table().size;
  Values mine = random_gradient(size, replicas_.rank(), 0);
  const Values first = through(*s, mine);
  Values broken = mine;
  broken[static_cast<std::size_t>(size) / 2] = std::nan("");
  const Values bad = through(*s, broken);
  EXPECT_TRUE(std::ranges::any_of(bad, [](double x) { return !std::isfinite(x); })) << "what is broken shows";
  s->sum->forget();
  EXPECT_EQ(through(*s, mine), first);
}

}  // namespace
}  // namespace nanotron::parallel
