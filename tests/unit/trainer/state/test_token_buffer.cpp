// ranks: 1
// Batches on their way to the device: read ahead or not, they are what the loader gives, and errors come when they are
// loaded.

#include "nanotron/trainer/state/token_buffer.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
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

class TokenBuffers : public testing::Test {
 protected:
  TokenBuffers() { config_.validation_fraction = 0.25; }

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
  TokenBuffer stage_{inputs_, targets_, starts_, sequence_tokens_};
};

TEST_F(TokenBuffers, WhatIsReadAheadIsWhatIsLoaded) {
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

// Read ahead or not; where a document continues in the next sequence it is another one.
TEST_F(TokenBuffers, CountsDocumentsOfTwoOrMorePositions) {
  const std::filesystem::path path = scratch_ / "documents.h5";
  std::filesystem::copy_file(path_, path);
  const std::vector<std::uint64_t> begins{1, 2, 3, 5, 16, 40, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 90, 200};
  test::put(hdf5::File(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT)).id(), "documents", H5T_STD_U64LE,
            H5T_NATIVE_UINT64, begins, {begins.size()});
  const data::TokenFile file(path);
  config_.document_mask = deck::DocumentMask::block_diagonal;
  const Kokkos::View<std::int32_t*, MemorySpace> starts("starts", 32);
  TokenBuffer stage(inputs_, targets_, starts, sequence_tokens_);
  BatchLoader loader(config_, 77, file, Split::training, 0, 1);
  index_t most = 0;
  for (index_t step = 0; step < 7; ++step) {
    const LoadedBatch batch = stage.load(device_, loader, step * global_batch);
    if (step % 2 == 0) stage.read_ahead(loader, (step + 1) * global_batch);
    device_.fence();
    const std::vector<std::int32_t> of_step = values_of(starts);
    ASSERT_EQ(batch.documents.size(), 2u);
    for (index_t m = 0; m < 2; ++m) {
      std::map<std::pair<index_t, std::int32_t>, int> lengths;  // by sequence and begin
      for (index_t i = 0; i < 16; ++i) ++lengths[{i / 8, of_step[static_cast<std::size_t>(m * 16 + i)]}];
      const auto longer = std::ranges::count_if(lengths, [](const auto& d) { return d.second > 1; });
      EXPECT_EQ(batch.documents[static_cast<std::size_t>(m)], longer);
      most = std::max(most, static_cast<index_t>(longer));
    }
  }
  EXPECT_GT(most, 2);
}

TEST_F(TokenBuffers, AnErrorComesWithItsBatch) {
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
