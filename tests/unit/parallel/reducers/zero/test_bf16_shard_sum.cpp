// ranks: 1 2 3 4 6 8
// ZeRO with compression = 'bf16': every addend is rounded once, and added in the order of ranks, in the type of the
// gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "nanotron/base/random.hpp"
#include "nanotron/parallel/reducers/reducers.hpp"
#include "support/device_values.hpp"
#include "support/differences.hpp"
#include "support/world.hpp"
#include "unit/parallel/reducers/reducer_subject.hpp"

namespace nanotron::parallel {
namespace {

constexpr index_t micro_batches = 2;

// What one micro-batch of a rank adds to the gradient, which bf16 does not hold.
double added(int rank, index_t micro_batch, index_t at) {
  return static_cast<float>(1e-3 * normal(static_cast<std::uint64_t>(rank), 17, static_cast<std::uint64_t>(at),
                                          static_cast<std::uint32_t>(micro_batch)));
}

// To nearest, ties to even; 8 bits.
double to_bf16(double x) {
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
}

template <class T>
class Subject {
 public:
  Subject(const deck::Config& config, comm::ProcessGrid& grid, Device& device)
      : sharding_{.stage = static_cast<int>(config.parallel.zero_stage),
                  .sections = model::SectionSharding{.group = &grid.data_groups(replicas).shard}} {
    Arena planning = Arena::planning();
    traffic = Objects(config, sharding_, grid, device, planning).reducers.traffic();
    arena_.emplace(planning.plan());
    objects_ = std::make_unique<Objects>(config, sharding_, grid, device, *arena_);
  }

  std::size_t bytes() const { return arena_->plan().total(); }
  const model::ParameterTable& table() const { return objects_->model.table(); }
  Range shard_of_unit(index_t u) const { return shard_of(table().unit(u), sharding_); }

  /// This rank's shard of each unit.
  std::vector<std::vector<T>> through(int rank) {
    const nn::ParameterBuffers<T>& p = objects_->model.parameters();
    objects_->reducers.begin_step(micro_batches);
    for (index_t m = 0; m < micro_batches; ++m) {
      for (index_t source = table().sources() - 1; source >= 0; --source) {
        objects_->reducers.begin(source);
        const Range range = table().unit(source).range;
        const Vector<T> here(p.gradient.data() + p.layouts.gradient.at(range.begin), range.size());
        std::vector<T> values = test::values_of(here);
        for (index_t i = 0; i < range.size(); ++i)
          values[static_cast<std::size_t>(i)] += static_cast<T>(added(rank, m, range.begin + i));
        test::set_values(here, values);
        objects_->reducers.end(source);
      }
    }
    objects_->reducers.finish();
    std::vector<std::vector<T>> shards;
    for (index_t u = 0; u < table().sources(); ++u) {
      const Range mine = shard_of_unit(u);
      shards.push_back(test::values_of(Vector<T>(p.gradient.data() + p.layouts.reduced.at(mine.begin), mine.size())));
    }
    return shards;
  }

  comm::StepTraffic traffic;  // as planned

 private:
  static constexpr auto replicas = comm::ReplicaSet::data_parallel;
  struct Objects {
    Objects(const deck::Config& c, const model::Sharding& sharding, comm::ProcessGrid& grid, Device& device,
            Arena& arena)
        : model({.model = c.model,
                 .sequences = 1,
                 .length = 4,
                 .key_length = 4,
                 .sharding = sharding,
                 .unit_shards = static_cast<int>(c.parallel.dp)},
                device, arena),
          reducers(c, model, sharding, grid, device, arena) {}
    model::Transformer<T> model;
    Reducers<T> reducers;
  };
  model::Sharding sharding_;
  std::optional<Arena> arena_;
  std::unique_ptr<Objects> objects_;
};

template <class T>
class Bf16ShardSum : public testing::Test {
 protected:
  // Of one element over the ranks; stage 1 rounds the sum of a rank's micro-batches, later stages each of them.
  static T expected(int stage, int ranks, int shards, index_t at) {
    T total = 0;
    for (int first = 0; first < ranks; first += shards) {
      T sum = 0;
      for (index_t m = 0; m < (stage == 1 ? 1 : micro_batches); ++m) {
        for (int r = first; r < first + shards; ++r) sum += static_cast<T>(to_bf16(addend(stage, r, m, at)));
      }
      total = first == 0 ? sum : total + sum;
    }
    return total;
  }

  static T addend(int stage, int rank, index_t m, index_t at) {
    if (stage > 1) return static_cast<T>(added(rank, m, at));
    T sum = 0;
    for (index_t i = 0; i < micro_batches; ++i) sum += static_cast<T>(added(rank, i, at));
    return sum;
  }

  // Of addends that are rounded once to 8 bits, with what the type of the sum adds.
  static double bound(int stage, int ranks, index_t at) {
    double size = 0.0;
    for (int r = 0; r < ranks; ++r) {
      for (index_t m = 0; m < (stage == 1 ? 1 : micro_batches); ++m)
        size += std::abs(static_cast<double>(addend(stage, r, m, at)));
    }
    return size * (0x1p-8 + 2.0 * ranks * std::numeric_limits<T>::epsilon());
  }

  static double exact(int ranks, index_t at) {
    double sum = 0.0;
    for (int r = 0; r < ranks; ++r) {
      for (index_t m = 0; m < micro_batches; ++m) sum += added(r, m, at);
    }
    return sum;
  }

  comm::ProcessGrid grid(int shards) const {
    return {comm::Communicator::duplicate(test::world()),
            {.dp = test::ranks(), .shards = shards},
            test::device_transport()};
  }

  deck::Config config(int stage, deck::Compression compression) const {
    deck::Config c = test::ReducerSubject::config(test::ranks());
    c.data.global_batch_size = micro_batches * test::ranks();
    c.parallel.zero_stage = stage;
    c.parallel.compression = compression;
    return c;
  }

  std::vector<int> shard_groups() const {
    std::vector<int> sizes{test::ranks()};
    if (test::ranks() > 2 && test::ranks() % 2 == 0) sizes.push_back(2);
    return sizes;
  }

  Timers timers_;
  Device device_{timers_};
};
using Masters = testing::Types<double, float>;
TYPED_TEST_SUITE(Bf16ShardSum, Masters);

TYPED_TEST(Bf16ShardSum, RoundsEachAddendOnceAndAddsInTheOrderOfRanks) {
  using T = TypeParam;
  const int ranks = test::ranks();
  if (ranks == 1) return;
  for (const int shards : this->shard_groups()) {
    comm::ProcessGrid grid = this->grid(shards);
    const int rank = grid.data_parallel().rank();
    for (const int stage : {1, 2, 3}) {
      deck::Config config = this->config(stage, deck::Compression::bf16);
      double worst = 0.0;
      for (const bool overlap : {true, false}) {
        SCOPED_TRACE(testing::Message() << "stage " << stage << ", shards " << shards << ", overlap " << overlap);
        config.parallel.overlap = overlap;
        Subject<T> subject(config, grid, this->device_);
        const auto sums = subject.through(rank);
        for (index_t u = 0; u < subject.table().sources(); ++u) {
          const Range mine = subject.shard_of_unit(u);
          for (index_t i = mine.begin; i < mine.end; ++i) {
            const T sum = sums[static_cast<std::size_t>(u)][static_cast<std::size_t>(i - mine.begin)];
            ASSERT_EQ(sum, this->expected(stage, ranks, shards, i)) << "unit " << u << " element " << i;
            const double error = std::abs(static_cast<double>(sum) - this->exact(ranks, i));
            worst = test::larger(worst, error / this->bound(stage, ranks, i));
          }
        }
      }
      EXPECT_LE(worst, 1.0);
      EXPECT_GT(worst, 0.1) << "nothing was rounded";
      if (rank == 0) std::printf("stage %d, groups of %d: error / bound %.2f\n", stage, shards, worst);
    }
  }
}

TYPED_TEST(Bf16ShardSum, SendsTwoBytesForEachElement) {
  using T = TypeParam;
  const int ranks = test::ranks();
  for (const int shards : this->shard_groups()) {
    comm::ProcessGrid grid = this->grid(shards);
    for (const int stage : {1, 2, 3}) {
      const Subject<T> plain(this->config(stage, deck::Compression::none), grid, this->device_);
      const Subject<T> rounded(this->config(stage, deck::Compression::bf16), grid, this->device_);
      const model::ParameterTable& table = plain.table();
      const index_t times = stage == 1 ? 1 : micro_batches, weights = table.size - table.params_1d.size();
      const index_t saved = ranks == 1 ? 0 : times * weights * static_cast<index_t>(sizeof(T) - sizeof(bf16));
      EXPECT_EQ(plain.traffic.data_parallel.counted - rounded.traffic.data_parallel.counted, saved);
      const std::size_t most = ranks == 1 ? 0 : sizeof(T) * static_cast<std::size_t>(weights);
      EXPECT_LE(rounded.bytes(), plain.bytes() + most);
    }
  }
}

}  // namespace
}  // namespace nanotron::parallel
