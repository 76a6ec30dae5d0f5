// ranks: 1
#include "nanotron/deck/config.hpp"
#include "nanotron/trainer/report/progress.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "support/file_size_limit.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"

namespace nanotron::trainer {
namespace {

io::CheckpointState at(std::int64_t step) { return {.step = step, .tokens_seen = step}; }
StepResult full_batch(const deck::Config& config) { return {.samples = config.data.global_batch_size}; }

TEST(Progress, AFullDiskCostsTheMetricsAndNotTheRun) {
  const test::Scratch scratch(test::world());
  Log log(true);
  log.open(scratch / "run.log");
  deck::Config config;
  config.run.steps = 100;
  config.run.log_every = 1;
  config.output.metrics_every = 1;
  auto file = std::make_unique<io::MetricsFile>(scratch / "metrics.h5", 0, io::MetricsStart{}, log);
  io::RunStatus status({}, {}, {}, config.run.steps, log);
  Progress progress(config, {.tokens = 1.0, .flops = 1.0, .gemm_peak = 1.0}, std::move(file), status, log);
  {
    const test::FileSizeLimit limit(32 << 10);
    for (std::int64_t step = 1; step <= 3; ++step) {
      progress.record(at(step), 1.0, full_batch(config));
      EXPECT_NO_THROW(progress.flush());
    }
    EXPECT_NO_THROW(progress.record_validation(3, std::array{1.0}));
  }
  const auto bytes = test::read_bytes(scratch / "run.log");
  const std::string told(bytes.begin(), bytes.end());
  const auto warning = told.find("warning: no further metrics");
  ASSERT_NE(warning, std::string::npos) << told;
  EXPECT_EQ(told.find("warning:", warning + 1), std::string::npos) << told;
  EXPECT_NE(told.find("step       3/100", warning), std::string::npos) << told;
}

TEST(Progress, TheLastStepOfAStartIsShownAndItsLossesAreTheSummary) {
  Log log(true);
  deck::Config config;
  config.run.steps = 100;
  config.run.log_every = 50;
  config.run.stop_after_steps = 3;
  io::RunStatus status({}, {}, {}, config.run.steps, log);
  Progress progress(config, {.tokens = 1.0, .flops = 1.0, .gemm_peak = 1.0}, nullptr, status, log);
  EXPECT_EQ(progress.summary(), "");
  ::testing::internal::CaptureStdout();
  for (std::int64_t step = 11; step <= 13; ++step) {
    StepResult result = full_batch(config);
    result.loss = static_cast<double>(step);
    result.statistics = {1.25, 3.5, 0.25, 0.125};
    progress.record(at(step), 1.0, result);
  }
  const std::string told = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(told.find("step      11/100"), std::string::npos) << told;
  EXPECT_EQ(told.find("step      12/100"), std::string::npos) << told;
  EXPECT_NE(told.find("step      13/100"), std::string::npos) << told;
  EXPECT_EQ(told.find("load balance"), std::string::npos) << told;
  EXPECT_EQ(progress.summary(), "loss 13.0000");
  progress.record_validation(13, std::array{2.5});
  EXPECT_EQ(progress.summary(), "loss 13.0000, validation loss 2.5000");
}

TEST(Progress, RoutersAreAtTheEndOfTheLine) {
  Log log(true);
  deck::Config config;
  config.run.steps = 1;
  config.model.moe.num_experts = 8;
  for (const double capacity : {0.0, 1.5}) {
    config.model.moe.capacity_factor = capacity;
    io::RunStatus status({}, {}, {}, config.run.steps, log);
    Progress progress(config, {.tokens = 1.0, .flops = 1.0, .gemm_peak = 1.0}, nullptr, status, log);
    StepResult result = full_batch(config);
    result.statistics = {1.25, 3.5, 0.25, 0.125};
    ::testing::internal::CaptureStdout();
    progress.record(at(1), 1.0, result);
    const std::string told = ::testing::internal::GetCapturedStdout();
    const std::string expected = "  load balance 1.250  z^2 3.50  busiest expert 12.5 %";
    EXPECT_NE(told.find(expected + (capacity == 0.0 ? "\n" : "  dropped 25.0 %\n")), std::string::npos) << told;
  }
}

// Batches of 2, 4, 6 and 8, of which 10 samples each: 5 + 3 + 2 steps and the rest. A sample takes a second.
TEST(Progress, WithARampTheRestOfTheRunIsCountedInSamples) {
  Log log(true);
  deck::Config config;
  config.run.steps = 12;
  config.run.log_every = 1;
  config.data.global_batch_size = 8;
  config.data.rampup_batch_size = config.data.rampup_increment = 2;
  config.data.rampup_samples = 30;
  io::RunStatus status({}, {}, {}, config.run.steps, log);
  Progress progress(config, {.tokens = 80.0, .flops = 1.0, .gemm_peak = 1.0}, nullptr, status, log);
  ::testing::internal::CaptureStdout();
  progress.record({.step = 5, .tokens_seen = 100, .sample_cursor = 10}, 2.0, {.samples = 2});
  const std::string told = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(told.find(" 10 tokens/s"), std::string::npos) << told;
  EXPECT_NE(told.find("ETA 00:00:40"), std::string::npos) << told;  // 3 x 4, 2 x 6 and 2 x 8 samples
  EXPECT_DOUBLE_EQ(progress.recent_seconds(), 4.0);
  EXPECT_DOUBLE_EQ(progress.full_seconds(), 8.0);
}

TEST(Progress, MfuIsAgainstTheStatedPeakAndNotANumberWithoutOne) {
  const test::Scratch scratch(test::world());
  Log log(true);
  deck::Config config;
  config.run.steps = 1;
  for (const double stated : {0.0, 40.0}) {
    const auto path = scratch / fmt::format("metrics_{}.h5", stated);
    ::testing::internal::CaptureStdout();
    {
      io::RunStatus status({}, {}, {}, config.run.steps, log);
      Progress progress(config, {.tokens = 1.0, .flops = 10.0, .gemm_peak = 20.0, .stated_peak = stated},
                        std::make_unique<io::MetricsFile>(path, 0, io::MetricsStart{}, log), status, log);
      progress.record(at(1), 1.0, full_batch(config));
    }
    const std::string told = ::testing::internal::GetCapturedStdout();
    EXPECT_NE(told.find("  50.0 % of GEMM peak"), std::string::npos) << told;
    EXPECT_EQ(told.find("mfu 25.0 %") != std::string::npos, stated > 0.0) << told;
    const hdf5::File file = hdf5::open_read_only(path);
    double mfu = 0.0, fraction = 0.0;
    H5Dread(hdf5::open_dataset(file.id(), "mfu", "").id(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, &mfu);
    H5Dread(hdf5::open_dataset(file.id(), "gemm_fraction", "").id(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT,
            &fraction);
    EXPECT_EQ(fraction, 0.5);
    if (stated > 0.0) {
      EXPECT_EQ(mfu, 0.25);
    } else {
      EXPECT_TRUE(std::isnan(mfu));
    }
  }
}

}  // namespace
}  // namespace nanotron::trainer
