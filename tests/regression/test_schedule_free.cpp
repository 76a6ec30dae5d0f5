// ranks: 1 2
// timeout: 300
// The weights to use of schedule-free AdamW, which are not those of its gradients: validation computes with them,
// checkpoints store them as parameters, and training continues with the same bits after either.

#include <gtest/gtest.h>

#include "support/drawn_decks.hpp"
#include "support/golden.hpp"
#include "support/trainer_run.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

using Keys = std::vector<std::string>;
constexpr int steps = 3;

class ScheduleFree : public testing::Test {
 protected:
  void SetUp() override { MPI_Comm_size(test::world(), &ranks_); }

  // Of the grids of these ranks in both types.
  template <class F>
  void on_all_grids(const F& f) const {
    int tried = 0;
    for (const Keys& grid : {Keys{},
                             {"parallel.tp=2"},
                             {"parallel.zero_stage=1"},
                             {"parallel.zero_stage=2", "parallel.zero_size=2"},
                             {"parallel.zero_stage=3"},
                             {"parallel.pp=2"}}) {
      for (const char* type : {"fp64", "bf16"}) {
        const deck::Config base = test::golden_config("llama");
        Keys set{"optimizer.name=schedule_free_adamw", "data.validation_fraction=0.1", "data.validation_batches=0",
                 std::string("precision.compute=") + type};
        set.push_back("data.path='" + base.data.path + "'");
        set.push_back("checkpoint.resume='" + base.checkpoint.resume + "'");
        set.insert(set.end(), grid.begin(), grid.end());
        const auto config = test::deck_if_legal("llama", set, ranks_);
        if (!config) continue;
        SCOPED_TRACE(testing::PrintToString(set));
        with_scalar_type(config->precision.compute, [&]<class T>(std::type_identity<T> t) { f(*config, t); });
        ++tried;
      }
    }
    EXPECT_GE(tried, ranks_ == 1 ? 2 : 10);
  }

  int ranks_ = 1;
};

TEST_F(ScheduleFree, ValidatesAndStoresTheWeightsToUse) {
  on_all_grids([]<class T>(deck::Config config, std::type_identity<T>) {
    const test::TemporaryFolder folder(test::world(), "schedule_free");
    config.checkpoint.directory = folder.path().string();
    std::vector<double> validated;
    {
      test::TrainerRun<T> run(config, test::world());
      run->resume();
      for (int i = 0; i < steps; ++i) run->train_step();
      validated = run->validate();
      run->save();
    }
    const test::Numbers own = [&] {
      deck::Config same = config;
      same.checkpoint.resume = "auto";
      return test::run_training(same, test::world(), steps);
    }();
    config.checkpoint.resume = "auto";
    config.optimizer.name = "adamw";  // whose weights are the parameters of the checkpoint
    test::TrainerRun<T> other(config, test::world());
    other->resume();
    EXPECT_EQ(other->validate(), validated);
    const test::Numbers stored = test::run_training(config, test::world(), steps);
    EXPECT_EQ(stored.parameters, own.states.at("x"));
    EXPECT_NE(stored.parameters, own.parameters);
  });
}

TEST_F(ScheduleFree, TrainsOnWithTheSameBitsAfterAValidation) {
  on_all_grids([]<class T>(const deck::Config& config, std::type_identity<T>) {
    const auto losses = [&](bool validates) {
      test::TrainerRun<T> run(config, test::world());
      run->resume();
      std::vector<double> all;
      for (int i = 0; i < steps; ++i) {
        if (validates) run->validate();
        all.push_back(run->train_step().loss);
      }
      return all;
    };
    EXPECT_EQ(losses(true), losses(false));
  });
}

}  // namespace
}  // namespace nanotron
