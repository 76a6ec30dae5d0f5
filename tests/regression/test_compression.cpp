// ranks: 2 4
// timeout: 300
// Gradients that are compressed on their way between replicas: training stays near the uncompressed run, repeats bit
// for bit, continues from a checkpoint, and sends what was predicted.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "nanotron/comm/collectives.hpp"
#include "nanotron/trainer/start/measured_keys.hpp"
#include "nanotron/trainer/state/run_resources.hpp"
#include "support/differences.hpp"
#include "support/training.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = 20;

class Compression : public testing::Test {
 protected:
  void SetUp() override {
    MPI_Comm_size(test::world(), &ranks_);
    config_ = test::golden_config("qwen3");
    config_.precision.compute = ScalarType::fp32;
    config_.parallel.dp = ranks_;
  }

  test::Numbers run(std::int64_t until = steps, bool save = false) const {
    return test::run_training(config_, test::world(), until, save);
  }

  // Loss and hash over the replicas.

  static void expect_same_bits(const test::Numbers& a, const test::Numbers& b) {
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.grad_norms, b.grad_norms);
    EXPECT_EQ(a.parameters, b.parameters);
    EXPECT_EQ(a.exp_avg, b.exp_avg);
    EXPECT_EQ(a.exp_avg_sq, b.exp_avg_sq);
  }

  // Ten steps, a checkpoint and the rest against all in one go.
  void expect_resumes_bit_for_bit() {
    const test::TemporaryFolder folder(test::world(), "compression");
    config_.checkpoint.directory = folder.path().string();
    test::Numbers whole = run();
    run(steps / 2, true);
    config_.checkpoint.resume = "auto";
    for (auto* of_steps : {&whole.losses, &whole.grad_norms})
      of_steps->erase(of_steps->begin(), of_steps->begin() + steps / 2);
    expect_same_bits(run(), whole);
  }

  // A sum that rounds keeps losses within this factor of the plain ones, and sends what was predicted.
  void expect_near(const test::Numbers& rounded, const test::Numbers& plain, double tolerance) {
    for (std::size_t i = 0; i < plain.losses.size(); ++i) {
      EXPECT_NEAR(rounded.losses[i], plain.losses[i], tolerance * plain.losses[i]) << i;
    }
    EXPECT_NE(rounded.losses, plain.losses);
    EXPECT_EQ(rounded.counted.data_parallel, rounded.predicted.data_parallel);
  }

  void expect_same_bits_for_all_buckets(deck::Compression compression) {
    config_.parallel.compression = compression;
    const test::Numbers one = run(4);
    config_.parallel.bucket_mb = 0.0137;
    expect_same_bits(run(4), one);
    config_.parallel.overlap = false;
    expect_same_bits(run(4), one);
  }

  int ranks_ = 1;
  deck::Config config_;
};

TEST_F(Compression, RoundedToBf16StaysNear) {
  const test::Numbers plain = run();
  config_.parallel.compression = deck::Compression::bf16;
  const test::Numbers rounded = run();
  expect_near(rounded, plain, 3e-3);
  EXPECT_EQ(2 * (rounded.predicted.data_parallel - test::exact_sum - test::hash - test::count),
            plain.predicted.data_parallel - test::exact_sum - test::hash - test::count);
}

TEST_F(Compression, RoundedToBf16TheBucketsAndOverlapChangeNoBit) {
  expect_same_bits_for_all_buckets(deck::Compression::bf16);
}

TEST_F(Compression, RoundedToBf16ContinuesBitForBitAndWithTensorParallel) {
  config_.parallel.compression = deck::Compression::bf16;
  if (ranks_ == 4) config_.parallel.dp = config_.parallel.tp = 2;
  expect_resumes_bit_for_bit();
}

// Gradients that ZeRO shards, in each stage and over groups of the ranks.
TEST_F(Compression, RoundedToBf16WithZeroStaysNearRepeatsAndContinuesBitForBit) {
  const std::string resume = config_.checkpoint.resume;
  for (const std::int64_t stage : {1, 2, 3}) {
    for (const std::int64_t size : {0, 2}) {
      if (size == ranks_) continue;
      SCOPED_TRACE(fmt::format("stage {}, groups of {}", stage, size));
      config_.parallel.zero_stage = stage;
      config_.parallel.zero_size = size;
      config_.parallel.compression = deck::Compression::none;
      const test::Numbers plain = run(6);
      config_.parallel.compression = deck::Compression::bf16;
      const test::Numbers one = run(6);
      expect_near(one, plain, 3e-3);
      config_.parallel.overlap = false;
      expect_same_bits(run(6), one);
      config_.parallel.overlap = true;
      if (stage != (size == 0 ? 2 : 3)) continue;  // files take their time
      expect_resumes_bit_for_bit();
      config_.checkpoint.resume = resume;
    }
  }
}

// With one micro-batch a step all stages round the same addends. The norm that clips is summed by pieces.
TEST_F(Compression, RoundedToBf16GivesTheSameBitsInStages1To3) {
  config_.parallel.compression = deck::Compression::bf16;
  config_.optimizer.clip_grad_norm = 0.0;
  config_.data.micro_batch_size = config_.data.global_batch_size / ranks_;
  config_.parallel.zero_stage = 1;
  const test::Numbers one = run(4);
  for (const std::int64_t stage : {2, 3}) {
    config_.parallel.zero_stage = stage;
    const test::Numbers other = run(4);
    EXPECT_EQ(other.losses, one.losses) << stage;
    EXPECT_EQ(other.parameters, one.parameters) << stage;
    EXPECT_EQ(other.exp_avg_sq, one.exp_avg_sq) << stage;
  }
}

// Three bits more than bf16: the losses stay an order of magnitude nearer.
TEST_F(Compression, RoundedToFp16StaysNearer) {
  const test::Numbers plain = run();
  config_.parallel.compression = deck::Compression::fp16;
  const test::Numbers rounded = run();
  expect_near(rounded, plain, 3e-4);
  EXPECT_LT(rounded.predicted.data_parallel, plain.predicted.data_parallel * 0.51);
}

TEST_F(Compression, RoundedToFp16TheBucketsAndOverlapChangeNoBit) {
  expect_same_bits_for_all_buckets(deck::Compression::fp16);
}

TEST_F(Compression, RoundedToFp16ContinuesBitForBitAndWithTensorParallelAndPipelines) {
  config_.parallel.compression = deck::Compression::fp16;
  expect_resumes_bit_for_bit();
  if (ranks_ != 4) return;
  config_.checkpoint.resume = test::golden_config("qwen3").checkpoint.resume;
  config_.parallel.dp = config_.parallel.tp = 2;
  expect_resumes_bit_for_bit();
  config_.checkpoint.resume = test::golden_config("qwen3").checkpoint.resume;
  config_.parallel.tp = 1, config_.parallel.pp = 2;
  expect_resumes_bit_for_bit();
}

TEST_F(Compression, ByPowerSgdStaysNear) {
  const test::Numbers plain = run();
  config_.parallel.compression = deck::Compression::powersgd;
  for (const std::int64_t rank : {1, 4}) {
    config_.parallel.powersgd_rank = rank;
    const test::Numbers ours = run();
    const double worst = test::largest_relative_difference(ours.losses, plain.losses);
    EXPECT_LT(worst, 0.1) << rank;
    EXPECT_LT(ours.losses.back(), ours.losses.front()) << rank;
    EXPECT_LT(ours.predicted.data_parallel, plain.predicted.data_parallel);
    EXPECT_EQ(ours.counted.data_parallel, ours.predicted.data_parallel);
    int me = 0;
    MPI_Comm_rank(test::world(), &me);
    if (me == 0) {
      std::printf("powersgd rank %d on %d replicas: %.1f %% of the bytes, losses within %.1e\n", static_cast<int>(rank),
                  ranks_,
                  100.0 * static_cast<double>(ours.predicted.data_parallel) /
                      static_cast<double>(plain.predicted.data_parallel),
                  worst);
    }
  }
}

TEST_F(Compression, ByPowerSgdOverlapChangesNoBit) {
  config_.parallel.compression = deck::Compression::powersgd;
  const test::Numbers one = run(4);
  expect_same_bits(run(4), one);
  config_.parallel.overlap = false;
  expect_same_bits(run(4), one);
}

TEST_F(Compression, ByPowerSgdContinuesBitForBit) {
  config_.parallel.compression = deck::Compression::powersgd;
  config_.parallel.powersgd_rank = 2;
  expect_resumes_bit_for_bit();
}

TEST_F(Compression, ByPowerSgdContinuesBitForBitOnEveryKindOfGrid) {
  config_.parallel.compression = deck::Compression::powersgd;
  config_.parallel.powersgd_rank = 2;
  if (ranks_ == 2) {
    config_.parallel.dp = 1, config_.parallel.cp = 2;  // the parts of a sequence are replicas
    return expect_resumes_bit_for_bit();
  }
  config_.parallel.dp = config_.parallel.tp = 2;
  expect_resumes_bit_for_bit();
  config_.checkpoint.resume = test::golden_config("qwen3").checkpoint.resume;
  config_.parallel.tp = 1, config_.parallel.pp = 2;
  expect_resumes_bit_for_bit();
}

// The errors are those of a grid and a rank: elsewhere the run continues without.
TEST_F(Compression, ByPowerSgdGoesOnWithoutItsErrorsElsewhere) {
  const test::TemporaryFolder folder(test::world(), "elsewhere");
  config_.checkpoint.directory = folder.path().string();
  config_.parallel.compression = deck::Compression::powersgd;
  const test::Numbers whole = run();
  run(steps / 2, true);
  config_.checkpoint.resume = "auto";
  const auto goes_on = [&] {
    const test::Numbers resumed = run();
    ASSERT_EQ(resumed.losses.size(), steps / 2u);
    for (std::size_t i = 0; i < steps / 2; ++i) {
      EXPECT_NEAR(resumed.losses[i], whole.losses[i + steps / 2], 0.05 * whole.losses[i + steps / 2]);
    }
    EXPECT_NE(resumed.losses, std::vector<double>(whole.losses.begin() + steps / 2, whole.losses.end()));
  };
  config_.parallel.powersgd_rank = 3;
  goes_on();
  config_.parallel.powersgd_rank = 4;
  config_.parallel.dp = ranks_ / 2, config_.parallel.tp = 2;
  goes_on();
  config_.parallel.compression = deck::Compression::none;
  goes_on();
}

// Experts are summed over replicas of their own, or over none.
TEST_F(Compression, OfExpertsStaysNearAndContinuesBitForBit) {
  config_ = test::golden_config("qwen2_moe");
  config_.precision.compute = ScalarType::fp32;
  config_.parallel.dp = ranks_;
  config_.parallel.powersgd_rank = 8;
  for (const std::int64_t ep : {1, 2}) {
    config_.parallel.ep = ep;
    config_.parallel.compression = deck::Compression::none;
    const test::Numbers plain = run();
    using enum deck::Compression;
    const std::pair<deck::Compression, double> all[] = {{deck::Compression::bf16, 1e-2}, {fp16, 1e-3}, {powersgd, 0.1}};
    for (const auto& [kind, near] : all) {
      SCOPED_TRACE(fmt::format("ep {}, compression {}", ep, static_cast<int>(kind)));
      config_.parallel.compression = kind;
      const test::Numbers ours = run();
      for (std::size_t i = 0; i < plain.losses.size(); ++i) {
        EXPECT_NEAR(ours.losses[i], plain.losses[i], near * plain.losses[i]) << i;
      }
      EXPECT_NE(ours.losses, plain.losses);
      EXPECT_LT(ours.losses.back(), ours.losses.front());
      EXPECT_LT(ours.predicted.data_parallel, plain.predicted.data_parallel);
      EXPECT_EQ(ours.counted.data_parallel, ours.predicted.data_parallel);
    }
    const std::string resume = config_.checkpoint.resume;
    expect_resumes_bit_for_bit();
    config_.checkpoint.resume = resume;
  }
}

TEST_F(Compression, OfBucketsMeasuredChangesNoBit) {
  const test::Numbers one = run(4);
  config_.parallel.bucket_mb = 0.0;
  trainer::resolve(config_, ranks_);
  {
    comm::ProcessGrid grid = trainer::make_grid(test::world(), config_);
    Log log(false, grid.world().rank());
    trainer::choose_bucket(config_, grid, log);
    EXPECT_EQ(comm::max(grid.world(), config_.parallel.bucket_mb), config_.parallel.bucket_mb);
  }
  EXPECT_GE(config_.parallel.bucket_mb, 0.25);
  EXPECT_EQ(trainer::read_deck_text(deck::canonical_deck(config_), "deck.nml").parallel.bucket_mb,
            config_.parallel.bucket_mb);
  expect_same_bits(run(4), one);
}

}  // namespace
}  // namespace nanotron
