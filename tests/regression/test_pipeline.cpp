// ranks: 2 3 4 6 8
// timeout: 300
// Every pipeline follows the serial run: each schedule with stages of unequal depth, alone and with tensor and data
// parallelism, for a model whose head and embedding are tied too.

#include <gtest/gtest.h>

#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

using deck::PpSchedule;

constexpr std::int64_t steps = 10;
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
        grids.push_back({pp, tp, dp, s, tp > 1 && ++turn % 2 ? deck::TpMode::reduce_scatter : deck::TpMode::all_reduce});
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
  return config;
}

double worst_difference(const test::Numbers& ours, const test::Numbers& theirs) {
  double worst = 0.0;
  for (std::size_t i = 0; i < theirs.losses.size(); ++i) {
    worst = std::max(worst, std::abs(ours.losses[i] - theirs.losses[i]) / theirs.losses[i]);
    worst = std::max(worst, std::abs(ours.grad_norms[i] - theirs.grad_norms[i]) / theirs.grad_norms[i]);
  }
  return worst;
}

void expect_same_state(const test::Tensors& ours, const test::Tensors& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [name, tensor] : theirs) EXPECT_LT(test::relative_difference(ours.at(name), tensor), 1e-9) << name;
}

class Pipelines : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { MPI_Comm_size(test::world(), &ranks_); }
  int ranks_ = 1;
};

TEST_P(Pipelines, FollowTheSerialRun) {
  const deck::Config config = with_layers(GetParam(), ranks_ > 4 ? 17 : 9);
  const test::Numbers reference = test::run_training(on({1, 1, 1, PpSchedule::gpipe}, config), MPI_COMM_SELF, steps);
  for (const Grid& grid : grids_of(ranks_)) {
    SCOPED_TRACE(text(grid));
    const test::Numbers ours = test::run_training(on(grid, config), test::world(), steps);
    const double worst = worst_difference(ours, reference);
    EXPECT_LT(worst, tolerance);
    EXPECT_EQ(ours.hashes, reference.hashes);
    expect_same_state(ours.parameters, reference.parameters);
    expect_same_state(ours.exp_avg, reference.exp_avg);
    expect_same_state(ours.exp_avg_sq, reference.exp_avg_sq);
    int rank = 0;
    MPI_Comm_rank(test::world(), &rank);
    if (rank == 0) std::printf("%s %s: worst relative difference %.1e\n", GetParam(), text(grid).c_str(), worst);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Pipelines, testing::Values("llama", "qwen2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nanotron
