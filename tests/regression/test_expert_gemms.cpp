// ranks: 1 2 4
// timeout: 600
// Grouped GEMMs train a mixture of experts as the library's do, up to the rounding of bf16: with experts that no token
// chooses, a capacity, a shared expert, on every axis of the grid. A run has the same bits again.

#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/drawn_decks.hpp"
#include "support/sampling.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = std::min<std::int64_t>(4, test::compared_steps);

struct Case {
  const char* golden;
  std::vector<std::string> set;
};
const std::vector<Case> cases{
    {"mixtral", {}},
    {"mixtral", {"moe.num_experts=16", "moe.num_experts_per_tok=1"}},  // 16 tokens: some experts have none
    {"mixtral", {"moe.capacity_factor=0.8"}},
    {"qwen2_moe", {"moe.moe_intermediate_size=48", "parallel.recompute=full"}},
    {"qwen2_moe", {"moe.moe_intermediate_size=48", "parallel.tp=2"}},
    {"qwen3_moe", {"parallel.ep=2", "parallel.recompute=selective"}},
    {"qwen3_moe", {"parallel.ep=2", "moe.capacity_factor=1.1", "parallel.zero_stage=1"}},
    {"mixtral", {"parallel.ep=2", "parallel.tp=2", "parallel.tp_mode=reduce_scatter"}},
    {"mixtral", {"parallel.zero_stage=3", "data.micro_batch_size=2"}},
    {"mixtral", {"parallel.pp=2", "parallel.pp_schedule=zero_bubble", "model.num_hidden_layers=4"}},
    {"mixtral", {"parallel.cp=2", "parallel.zero_stage=2"}},
};

class ExpertGemms : public testing::Test {
 protected:
  void SetUp() override { MPI_Comm_size(test::world(), &ranks_); }

  std::vector<std::pair<std::string, deck::Config>> legal(std::size_t sample) const {
    std::vector<std::pair<std::string, deck::Config>> found;
    for (const Case& c : cases) {
      std::vector<std::string> set = c.set;
      for (const char* const more : {"checkpoint.resume=none", "precision.compute=bf16", "run.expert_gemms=grouped"}) {
        set.emplace_back(more);
      }
      set.push_back("data.path='" + tokens_.path() + "'");
      const auto config = test::deck_if_legal(c.golden, set, ranks_);
      EXPECT_TRUE(config || ranks_ != 4) << testing::PrintToString(c.set);
      if (config) found.emplace_back(c.golden + testing::PrintToString(c.set), *config);
    }
    EXPECT_GE(found.size(), 4u);
    return test::sampled(found, sample, test::world());
  }
  static test::Numbers run(deck::Config config, deck::ExpertGemms gemms, std::int64_t until = steps) {
    config.run.expert_gemms = gemms;
    return test::run_training(config, test::world(), until);
  }

  void TearDown() override {
    int rank = 0;
    MPI_Comm_rank(test::world(), &rank);
    if (rank == 0 && worst_ > 0.0) {
      std::printf("worst error of a gradient: grouped %.4f, library %.4f\n", worst_, worst_library_);
    }
  }

  int ranks_ = 1;
  double worst_ = 0.0, worst_library_ = 0.0;
  test::TokensOfDocuments tokens_{"expert_gemms", 20'000};
};

// The first moments after a step are its gradients, except for one factor.
TEST_F(ExpertGemms, GroupedFollowTheLibraryAndFp64) {
  for (auto [name, config] : legal(2)) {
    SCOPED_TRACE(name);
    const test::Numbers grouped = run(config, deck::ExpertGemms::grouped),
                        library = run(config, deck::ExpertGemms::library);
    EXPECT_LT(test::worst_loss_difference(grouped, library), 0.01);
    EXPECT_EQ(grouped.hashes, library.hashes);
    const test::Tensors ours = run(config, deck::ExpertGemms::grouped, 1).exp_avg,
                        theirs = run(config, deck::ExpertGemms::library, 1).exp_avg;
    config.precision.compute = ScalarType::fp64;
    const test::Tensors exact = run(config, deck::ExpertGemms::library, 1).exp_avg;
    for (const auto& [tensor, values] : exact) {
      const double error = test::relative_difference(ours.at(tensor), values),
                   of_library = test::relative_difference(theirs.at(tensor), values);
      EXPECT_LT(error, 1.5 * of_library + 0.02) << tensor;
      worst_ = test::larger(worst_, error), worst_library_ = test::larger(worst_library_, of_library);
    }
  }
}

TEST_F(ExpertGemms, ASecondRunHasTheSameBits) {
  for (const auto& [name, config] : legal(1)) {
    SCOPED_TRACE(name);
    const test::Numbers one = run(config, deck::ExpertGemms::grouped), other = run(config, deck::ExpertGemms::grouped);
    EXPECT_EQ(one.losses, other.losses);
    EXPECT_EQ(one.grad_norms, other.grad_norms);
    EXPECT_EQ(one.parameters, other.parameters);
  }
}

}  // namespace
}  // namespace nanotron
