// ranks: 2 3 4 6 8
// timeout: 300
// Every pipeline follows the serial run: each schedule with stages of unequal depth, alone and with tensor and data
// parallelism, for a model whose head and embedding are tied too.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/orders.hpp"
#include "support/sampling.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

using deck::PpSchedule;

constexpr std::int64_t steps = test::compared_steps;
constexpr double tolerance = 1e-11;

struct Grid {
  int pp, tp, dp;
  PpSchedule schedule;
  deck::TpMode mode = deck::TpMode::all_reduce;
};

std::string text(const Grid& g) {
  const char* const names[] = {"gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"};
  return fmt::format("pp {} tp {} dp {} {} {}", g.pp, g.tp, g.dp, names[static_cast<int>(g.schedule)],
                     g.mode == deck::TpMode::all_reduce ? "all_reduce" : "reduce_scatter");
}

// Every way to cut `ranks` with a pipeline; schedules and modes in turn, so that each meets each.
std::vector<Grid> grids_of(int ranks) {
  std::vector<Grid> grids;
  int turn = 0;
  for (const int pp : {2, 3, 4, 8}) {
    for (const int tp : {1, 2, 3, 4}) {
      const int dp = ranks / (pp * tp);
      if (pp * tp * dp != ranks || 8 % dp != 0) continue;
      for (const PpSchedule s :
           {PpSchedule::gpipe, PpSchedule::one_f_one_b, PpSchedule::interleaved_1f1b, PpSchedule::zero_bubble}) {
        grids.push_back(
            {pp, tp, dp, s, tp > 1 && ++turn % 2 ? deck::TpMode::reduce_scatter : deck::TpMode::all_reduce});
      }
    }
  }
  return grids;
}

deck::Config with_layers(const char* name, std::int64_t layers) {
  deck::Config config = test::golden_config(name);
  config.model.num_hidden_layers = layers;
  config.checkpoint.resume = "none";
  return config;
}

deck::Config on(const Grid& grid, deck::Config config) {
  config.parallel.pp = grid.pp;
  config.parallel.tp = grid.tp;
  config.parallel.dp = grid.dp;
  config.parallel.pp_schedule = grid.schedule;
  config.parallel.tp_mode = grid.mode;
  // Over NCCL groups of micro-batches that are not full are refused (tests/emulation/test_interleaved.cpp).
  const std::int64_t micro_batches = config.data.global_batch_size / config.data.micro_batch_size / grid.dp;
  if (grid.schedule == PpSchedule::interleaved_1f1b && micro_batches % grid.pp != 0)
    config.parallel.backend = deck::Backend::mpi;
  return config;
}

class Pipelines : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { MPI_Comm_size(test::world(), &ranks_); }
  int ranks_ = 1;
};

TEST_P(Pipelines, FollowTheSerialRun) {
  std::map<int, test::Numbers> references;         // by depth of the pipeline: unequal stages of two layers and one
  const std::vector<Grid> all = grids_of(ranks_);  // in many orders of the streams four of them, by turns
  for (const Grid& grid : test::sampled(all, test::legal_orders > 1 ? 4 : all.size(), test::world())) {
    const deck::Config config = with_layers(GetParam(), 2 * grid.pp + 1);
    if (!references.contains(grid.pp)) references[grid.pp] = test::serial(config, steps);
    const test::Numbers& reference = references.at(grid.pp);
    SCOPED_TRACE(text(grid));
    double worst = 0.0;
    test::in_legal_orders([&] {
      const test::Numbers ours = test::run_training(on(grid, config), test::world(), steps);
      worst = test::larger(worst, test::worst_loss_difference(ours, reference));
      EXPECT_LT(worst, tolerance);
      EXPECT_EQ(ours.hashes, reference.hashes);
      EXPECT_EQ(ours.counted.pipeline, ours.predicted.pipeline);
      EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel);
      test::expect_same_state(ours.parameters, reference.parameters);
      test::expect_same_state(ours.exp_avg, reference.exp_avg);
      test::expect_same_state(ours.exp_avg_sq, reference.exp_avg_sq);
    });
    int rank = 0;
    MPI_Comm_rank(test::world(), &rank);
    if (rank == 0) std::printf("%s %s: worst relative difference %.1e\n", GetParam(), text(grid).c_str(), worst);
  }
}

// Five steps by one schedule, five more by another or on one rank, from the checkpoint between them.
TEST_P(Pipelines, GoOnByAnySchedule) {
  const test::TemporaryFolder folder(test::world(), "pipeline");
  const int pp = ranks_ % 3 == 0 ? 3 : 2, dp = ranks_ / pp;
  if (8 % dp != 0) return;
  deck::Config config = with_layers(GetParam(), 7);
  const test::Numbers reference = test::serial(config, 10);
  config.checkpoint.directory = (folder.path() / "checkpoints").string();
  const PpSchedule schedules[] = {PpSchedule::zero_bubble, PpSchedule::interleaved_1f1b, PpSchedule::one_f_one_b};
  for (std::size_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    config.checkpoint.resume = "none";
    test::run_training(on({pp, 1, dp, schedules[i]}, config), test::world(), 5, true);
    config.checkpoint.resume = (folder.path() / "checkpoints" / "step_00000005").string();
    const test::Numbers same = test::run_training(on({pp, 1, dp, schedules[i]}, config), test::world(), 10);
    const test::Numbers other = test::run_training(on({pp, 1, dp, schedules[(i + 1) % 3]}, config), test::world(), 10);
    const test::Numbers serial = test::serial(config, 10);
    for (const test::Numbers* rest : {&same, &other, &serial}) {
      ASSERT_EQ(rest->losses.size(), 5u);
      for (std::size_t s = 0; s < 5; ++s) {
        EXPECT_NEAR(rest->losses[s], reference.losses[5 + s], tolerance * reference.losses[5 + s]);
      }
      test::expect_same_state(rest->parameters, reference.parameters);
      test::expect_same_state(rest->exp_avg_sq, reference.exp_avg_sq);
      EXPECT_EQ(rest->adam_steps, 10);
    }
    MPI_Barrier(test::world());
  }
}

// Stages without a head or an embedding, in the types that training is done in.
TEST_P(Pipelines, NarrowTypesFollowWithinTheirRounding) {
  const int pp = ranks_ % 3 == 0 ? 3 : 2, dp = ranks_ / pp;
  if (8 % dp != 0) return;
  for (const auto& [type, bound] : {std::pair{ScalarType::fp32, 2e-5}, {ScalarType::bf16, 2e-2}}) {
    deck::Config config = with_layers(GetParam(), 2 * pp + 1);
    config.precision.compute = type;
    const test::Numbers reference = test::serial(config, 4);
    for (const PpSchedule schedule :
         {PpSchedule::gpipe, PpSchedule::one_f_one_b, PpSchedule::interleaved_1f1b, PpSchedule::zero_bubble}) {
      SCOPED_TRACE(text({pp, 1, dp, schedule}));
      const test::Numbers ours = test::run_training(on({pp, 1, dp, schedule}, config), test::world(), 4);
      for (std::size_t s = 0; s < 4; ++s) EXPECT_NEAR(ours.losses[s], reference.losses[s], bound * reference.losses[s]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Pipelines, testing::ValuesIn(test::turn_of({"llama", "qwen2"})),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nanotron
