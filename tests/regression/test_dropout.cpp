// ranks: 1 2 4
// timeout: 300
// Dropout: 20 steps as PyTorch with the same masks (tests/golden/make_dropout_golden.py), on every grid; resumed on
// another one; none in validation.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/comparison.hpp"
#include "support/differences.hpp"
#include "support/test_folder.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

using Keys = std::vector<std::string>;

class Dropout : public testing::Test {
 protected:
  Dropout() {
    MPI_Comm_size(test::world(), &ranks_);
    std::ifstream file(test::test_folder() / "golden" / "dropout.json");
    golden_ = nlohmann::json::parse(file);
  }

  deck::Config config(const Keys& keys) const {
    const auto folder = test::test_folder() / "golden" / golden_.at("case").get<std::string>();
    Keys all{"data.path=" + (folder / "tokens.h5").string(),
             "checkpoint.resume=" + (folder / "step_00000000").string(),
             "checkpoint.at_end=false",
             "run.seed=" + std::to_string(golden_.at("seed").get<int>()),
             "model.hidden_dropout=" + golden_.at("hidden_dropout").dump(),
             "model.attention_dropout=" + golden_.at("attention_dropout").dump()};
    all.insert(all.end(), keys.begin(), keys.end());
    return trainer::read_deck((folder / "input.deck").string(), all);
  }

  std::vector<Keys> grids() const {
    if (ranks_ == 1) return {{"data.micro_batch_size=4"}, {"parallel.recompute=full"}};
    if (ranks_ == 2) {
      return {{"parallel.tp=2", "parallel.tp_mode=reduce_scatter", "parallel.tp_overlap_chunks=3"},
              {"parallel.pp=2", "parallel.pp_schedule=gpipe"},
              {"parallel.cp=2"},
              {"parallel.dp=2", "data.micro_batch_size=2"}};
    }
    return {{"parallel.tp=2", "parallel.cp=2", "parallel.cp_mode=all_to_all", "parallel.tp_mode=reduce_scatter"},
            {"parallel.pp=2", "parallel.dp=2", "parallel.recompute=selective"},
            {"parallel.cp=2", "parallel.dp=2", "parallel.zero_stage=3"}};
  }

  int ranks_ = 1;
  nlohmann::json golden_;
};

TEST_F(Dropout, TwentyStepsAgreeWithPytorch) {
  const std::vector<double> losses = golden_.at("fp64").at("losses"), norms = golden_.at("fp64").at("grad_norms");
  for (const Keys& keys : grids()) {
    SCOPED_TRACE(keys.front());
    const test::Numbers ours = test::run_training(config(keys), test::world(), 20);
    EXPECT_LT(test::largest_relative_difference(ours.losses, losses), 1e-12);
    EXPECT_LT(test::largest_relative_difference(ours.grad_norms, norms), 1e-10);
    std::printf("%s: worst relative difference of a loss %.1e\n", keys.front().c_str(),
                test::largest_relative_difference(ours.losses, losses));
    for (const auto& [name, tensor] : ours.parameters) {
      double squares = 0.0;
      for (const double x : tensor) squares += x * x;
      const double norm = golden_.at("fp64").at("parameters").at(name).at("l2");
      if (name.find("k_proj/bias") != std::string::npos) continue;  // whose gradient is rounding
      EXPECT_NEAR(std::sqrt(squares), norm, 1e-9 * norm) << name;
    }
  }
}

// The samples after a checkpoint have the masks that they would have had without a stop.
TEST_F(Dropout, ResumesOnAnotherGrid) {
  const test::TemporaryFolder folder(test::world(), "dropout");
  const auto ran = [&](const Keys& keys, std::int64_t until, bool save, const char* resume) {
    deck::Config c = config(keys);
    c.checkpoint.directory = folder.path().string();
    if (resume != nullptr) c.checkpoint.resume = resume;
    return test::run_training(c, test::world(), until, save);
  };
  const std::vector<double> losses = golden_.at("fp64").at("losses");
  ran(grids().front(), 9, true, nullptr);
  const test::Numbers resumed = ran(grids().back(), 20, false, "auto");
  const std::vector<double> later(losses.begin() + 9, losses.end());
  EXPECT_LT(test::largest_relative_difference(resumed.losses, later), 1e-12);
}

}  // namespace
}  // namespace nanotron
