// ranks: 1
// Batches on their way to the device: read ahead or not, they are what the loader gives, and errors come when they are
// loaded.

#include "nanotron/trainer/token_stage.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "support/device_values.hpp"
#include "support/world.hpp"
#include "unit/data/data_config.hpp"
#include "unit/data/scratch.hpp"
#include "unit/data/token_file_maker.hpp"

namespace nanotron::trainer {
namespace {

using data::BatchLoader;
using data::Split;
using test::set_values;
using test::values_of;

constexpr index_t global_batch = 4, per_micro_batch = 16;

class TokenStages : public testing::Test {
 protected:
  TokenStages() { config_.validation_fraction = 0.25; }

  static std::filesystem::path with_tokens(const std::filesystem::path& path) {
    test::make_token_file(path, 40 * 8 + 1, 251);
    return path;
  }

  void expect_loaded(BatchLoader& loader, index_t first) {
    const LoadedBatch batch = stage_.load(device_, loader, first);
    device_.fence();
    const std::vector<std::int32_t> inputs = values_of(inputs_), targets = values_of(targets_);
    std::vector<std::int32_t> expected(inputs.size()), expected_targets(inputs.size());
    std::uint64_t hash = 0;
    for (index_t m = 0; m < 2; ++m) {
      hash +=
          loader.load(first, m, expected.data() + m * per_micro_batch, expected_targets.data() + m * per_micro_batch);
    }
    EXPECT_EQ(inputs, expected);
    EXPECT_EQ(targets, expected_targets);
    EXPECT_EQ(batch.token_hash, hash);
    const std::vector<std::int32_t> tokens = values_of(sequence_tokens_);
    EXPECT_EQ(batch.tokens, std::accumulate(tokens.begin(), tokens.end(), 0));
    EXPECT_EQ(batch.targets, std::ssize(targets) - std::ranges::count(targets, data::no_target));
  }

  const test::Scratch scratch_{test::world()};
  const std::filesystem::path path_ = with_tokens(scratch_ / "tokens.h5");
  deck::DataConfig config_ = test::data_config(8, global_batch, 2, deck::Shuffle::global);
  const data::TokenFile file_{path_};
  Timers timers_;
  Device device_{timers_};
  Kokkos::View<std::int32_t*, MemorySpace> inputs_{"inputs", 32}, targets_{"targets", 32}, starts_{"starts", 0},
      sequence_tokens_{"sequence tokens", 4};
  TokenStage stage_{inputs_, targets_, starts_, sequence_tokens_};
};

TEST_F(TokenStages, WhatIsReadAheadIsWhatIsLoaded) {
  BatchLoader training(config_, 77, file_, Split::training, 0, 1),
      validation(config_, 77, file_, Split::validation, 0, 1);
  expect_loaded(training, 0);
  for (index_t step = 1; step < 6; ++step) {
    stage_.read_ahead(training, step * global_batch);
    if (step == 3) expect_loaded(validation, 0);  // in between
    expect_loaded(training, step * global_batch);
  }
  stage_.read_ahead(training, 6 * global_batch);
  expect_loaded(training, 9 * global_batch);  // another one than was read
  expect_loaded(training, 6 * global_batch);
}

TEST_F(TokenStages, AnErrorComesWithItsBatch) {
  const std::filesystem::path copy = scratch_ / "copy.h5";
  std::filesystem::copy_file(path_, copy);
  const data::TokenFile damaged(copy);
  BatchLoader good(config_, 77, file_, Split::training, 0, 1), bad(config_, 77, damaged, Split::training, 0, 1);
  expect_loaded(good, 0);
  std::filesystem::resize_file(copy, std::filesystem::file_size(copy) / 2);
  EXPECT_NO_THROW(stage_.read_ahead(bad, global_batch));
  EXPECT_THROW(stage_.load(device_, bad, global_batch), Error);
  expect_loaded(good, global_batch);
}

}  // namespace
}  // namespace nanotron::trainer
