// ranks: 2 4
// timeout: 600
// parallel%ep_row_type: rows that travel to experts on other ranks in bf16, or as FP8 codes. Losses stay within 0.5 %
// of those of rows that are not rounded, over 100 steps; what is sent is what was predicted; halves that take turns
// round the same rows.

#include <gtest/gtest.h>

#include "support/comparison.hpp"
#include "support/expert_runs.hpp"

namespace nanotron {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(NANOTRON_EMULATED_GPU)
constexpr std::int64_t steps = 4;
#else
constexpr std::int64_t steps = 100;
#endif

class EpRowType : public testing::TestWithParam<const char*> {
 protected:
  deck::Config config_of(ScalarType compute) const {
    deck::Config c = test::over_data_ranks(GetParam(), compute, steps);
    c.optimizer.learning_rate = 1e-3;
    return c;
  }
  static test::Numbers with(deck::Config c, deck::ExpertRowType type, std::int64_t until = steps) {
    c.parallel.ep_row_type = type;
    return test::run_training(c, test::world(), until);
  }
};

TEST_P(EpRowType, LossesStayWithinHalfAPercent) {
  using enum deck::ExpertRowType;
  for (const ScalarType precision : {ScalarType::fp32, ScalarType::bf16}) {
    const deck::Config config = config_of(precision);
    const test::Numbers reference = with(config, compute);
    for (const deck::ExpertRowType type : {bf16, fp8}) {
      const test::Numbers ours = with(config, type);
      double worst = 0.0;
      for (std::size_t i = 0; i < reference.losses.size(); ++i)
        worst = test::larger(worst, std::abs(ours.losses[i] / reference.losses[i] - 1.0));
      EXPECT_LT(worst, 5e-3);
      const bool is_rounded = type == fp8 || precision == ScalarType::fp32;
      EXPECT_EQ(ours.losses != reference.losses, is_rounded) << "whether rounding changes something";
      test::expect_predicted_traffic(config, ours);
      if (is_rounded) {
        EXPECT_LT(ours.predicted.expert_parallel, reference.predicted.expert_parallel);
      }
      int rank = 0;
      MPI_Comm_rank(test::world(), &rank);
      if (rank == 0) std::printf("%s: worst relative difference of a loss %.1e\n", GetParam(), worst);
    }
  }
}

TEST_P(EpRowType, HalvesInTurnsRoundTheSame) {
  deck::Config config = config_of(ScalarType::fp32), turns = config;
  turns.parallel.ep_overlap = true;
  turns.data.micro_batch_size = 2;
  const test::Numbers apart = with(config, deck::ExpertRowType::fp8, 3),
                      together = with(turns, deck::ExpertRowType::fp8, 3);
  EXPECT_EQ(together.losses, apart.losses);
  EXPECT_EQ(together.parameters, apart.parameters);
}

INSTANTIATE_TEST_SUITE_P(Models, EpRowType, testing::Values("mixtral", "qwen2_moe"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nanotron
