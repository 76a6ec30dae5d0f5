// ranks: 1 2 4
// timeout: 600
// Families with norms, positions, windows and feed-forward networks of their own follow their serial run on every axis
// of the grid, and keep its bits where a deck asks for that.

#include <gtest/gtest.h>

#include <algorithm>

#include "nanotron/trainer/start/deck_features.hpp"
#include "support/comparison.hpp"
#include "support/golden.hpp"
#include "support/test_folder.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = test::compared_steps;
constexpr double tolerance = 1e-11;

using Keys = std::vector<std::string>;

std::string joined(const Keys& keys) {
  std::string all;
  for (const std::string& key : keys) all += (all.empty() ? "" : " ") + key.substr(key.find('.') + 1);
  return all;
}

class Families : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    MPI_Comm_size(test::world(), &ranks_);
    MPI_Comm_rank(test::world(), &rank_);
  }

  deck::Config config(const Keys& keys) const {
    const auto folder = test::test_folder() / "golden" / GetParam();
    deck::Config c = trainer::read_deck((folder / "input.deck").string(), keys);
    c.data.path = (folder / "tokens.h5").string();
    c.checkpoint.resume = (folder / "step_00000000").string();
    c.checkpoint.at_end = false;
    return c;
  }

  // Degrees whose product is the number of ranks; dp is what they leave.
  std::vector<Keys> grids() const {
    if (ranks_ == 1)
      return {{"data.micro_batch_size=4"}, {"parallel.recompute=selective"}, {"parallel.recompute=full"}};
    if (ranks_ == 2) {
      return {{"parallel.tp=2"},
              {"parallel.tp=2", "parallel.tp_mode=reduce_scatter", "parallel.tp_overlap_chunks=3"},
              {"parallel.tp=2", "parallel.tp_mode=reduce_scatter", "parallel.tp_gathered_inputs=keep",
               "data.micro_batch_size=2"},
              {"parallel.pp=2"},
              {"parallel.pp=2", "parallel.pp_schedule=gpipe", "data.micro_batch_size=2"},
              {"parallel.cp=2"},
              {"parallel.cp=2", "parallel.cp_mode=all_to_all"},
              {"parallel.dp=2"},
              {"parallel.zero_stage=1"},
              {"parallel.zero_stage=2", "data.micro_batch_size=4"},
              {"parallel.zero_stage=3"}};
    }
    return {{"parallel.tp=4"},
            {"parallel.tp=4", "parallel.tp_mode=reduce_scatter"},
            {"parallel.tp=2", "parallel.pp=2", "parallel.tp_mode=reduce_scatter"},
            {"parallel.tp=2", "parallel.cp=2", "parallel.tp_mode=reduce_scatter", "parallel.recompute=selective"},
            {"parallel.pp=2", "parallel.cp=2", "parallel.cp_mode=all_to_all"},
            {"parallel.pp=2", "parallel.dp=2", "parallel.zero_stage=1"},
            {"parallel.cp=4"},
            {"parallel.cp=2", "parallel.dp=2", "parallel.zero_stage=3"},
            {"parallel.tp=2", "parallel.dp=2", "parallel.zero_stage=2", "parallel.tp_mode=reduce_scatter"}};
  }

  static Keys sharded(Keys keys) {
    keys.insert(keys.end(), {"precision.reproducible=layout", "precision.tensor_shards=2"});
    return keys;
  }

  int ranks_ = 1, rank_ = 0;
};

TEST_P(Families, FollowTheSerialRun) {
  const test::Numbers reference = test::serial(config({}), steps);
  const std::set<std::string> arbitrary = test::without_gradient(GetParam());
  for (const Keys& keys : grids()) {
    SCOPED_TRACE(joined(keys));
    const test::Numbers ours = test::run_training(config(keys), test::world(), steps);
    const double worst = test::worst_loss_difference(ours, reference);
    EXPECT_LT(worst, tolerance);
    EXPECT_EQ(ours.counted.tensor_parallel, ours.predicted.tensor_parallel);
    EXPECT_EQ(ours.counted.context_parallel, ours.predicted.context_parallel);
    EXPECT_EQ(ours.counted.data_parallel, ours.predicted.data_parallel);
    test::expect_same_state(ours.parameters, reference.parameters, arbitrary);
    test::expect_same_state(ours.exp_avg, reference.exp_avg, arbitrary);
    test::expect_same_state(ours.exp_avg_sq, reference.exp_avg_sq, arbitrary);
    if (rank_ == 0)
      std::printf("%s %s: worst relative difference %.1e\n", GetParam().c_str(), joined(keys).c_str(), worst);
  }
}

TEST_P(Families, KeepTheirBitsOnEveryGrid) {
  if (ranks_ == 1) GTEST_SKIP() << "of several ranks";
  const std::vector<Keys> grids =
      ranks_ == 2 ? std::vector<Keys>{{"parallel.tp=2"},
                                      {"parallel.tp=2", "parallel.tp_mode=reduce_scatter"},
                                      {"parallel.pp=2"},
                                      {"parallel.zero_stage=3"}}
                  : std::vector<Keys>{{"parallel.tp=2", "parallel.dp=2", "parallel.zero_stage=2"},
                                      {"parallel.tp=2", "parallel.pp=2", "parallel.tp_mode=reduce_scatter"},
                                      {"parallel.pp=2", "parallel.dp=2", "parallel.zero_stage=1"}};
  for (const char* type : {"fp64", "bf16"}) {
    const std::string compute = std::string("precision.compute=") + type;
    const test::Numbers reference = test::serial(config(sharded({compute})), 4);
    for (Keys keys : grids) {
      keys = sharded(keys);
      keys.push_back(compute);
      SCOPED_TRACE(joined(keys));
      const test::Numbers ours = test::run_training(config(keys), test::world(), 4);
      EXPECT_EQ(ours.losses, reference.losses);
      EXPECT_EQ(ours.grad_norms, reference.grad_norms);
      EXPECT_EQ(ours.parameters, reference.parameters);
      EXPECT_EQ(ours.exp_avg_sq, reference.exp_avg_sq);
    }
  }
}

TEST_P(Families, KeepTheirBitsOverContextShards) {
  if (ranks_ == 1) GTEST_SKIP() << "of several ranks";
  const std::string context = "precision.context_shards=2";
  const test::Numbers reference = test::serial(config(sharded({context})), 4);
  const test::Numbers ours =
      test::run_training(config(sharded({context, "parallel.cp=2", "parallel.cp_mode=all_to_all"})), test::world(), 4);
  EXPECT_EQ(ours.losses, reference.losses);
  EXPECT_EQ(ours.parameters, reference.parameters);
}

INSTANTIATE_TEST_SUITE_P(Models, Families, testing::ValuesIn(test::golden_families()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace nanotron
