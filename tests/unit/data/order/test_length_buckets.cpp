// ranks: 1
// Samples of a step in the order of the classes of their documents: the same samples as without, on every grid.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "nanotron/data/batch_loader.hpp"
#include "support/world.hpp"
#include "unit/data/data_config.hpp"
#include "unit/data/scratch.hpp"
#include "unit/data/token_file_maker.hpp"

namespace nanotron::data {
namespace {

constexpr index_t length = 32;

class LengthBuckets : public testing::Test {
 protected:
  LengthBuckets() : scratch_(test::world()) {
    constexpr std::uint64_t tokens = 6000;
    std::vector<std::uint64_t> starts;
    for (std::uint64_t at = 0, i = 0; at < tokens; at += 2 + (i % 9 == 0 ? 5 + i * i % 26 : i * i % 5), ++i)
      starts.push_back(at);
    const hdf5::File file = test::new_file(scratch_ / "tokens.h5");
    test::put(file.id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT32, test::sample_tokens(tokens, 251), {tokens});
    test::put(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, starts, {starts.size()});
  }

  static deck::DataConfig data(index_t micro_batch) {
    deck::DataConfig data = test::data_config(length, 24, micro_batch, deck::Shuffle::global);
    data.document_mask = deck::DocumentMask::block_diagonal;
    data.sequences = deck::SequenceKind::documents;
    data.length_buckets = true;
    return data;
  }
  BatchLoader loader(const deck::DataConfig& data, const TokenFile& file, int rank, int ranks,
                     Split split = Split::training) const {
    return {data, 5, {&file, 1}, split, rank, ranks, {{0, length}, {length, length}}, data.micro_batch_size};
  }

  test::Scratch scratch_;
};

// How often a sequence of 32 is halved, by its longest document.
int class_of(std::span<const std::int32_t> starts) {
  std::int32_t longest = 0;
  for (std::size_t i = 0; i < starts.size(); ++i)
    longest = std::max(longest, static_cast<std::int32_t>(i) - starts[i] + 1);
  int halvings = 0;
  while (longest <= length >> (halvings + 1)) ++halvings;
  return halvings;
}

TEST_F(LengthBuckets, HaveTheSamplesOfTheStepInAnotherOrder) {
  const TokenFile file(scratch_ / "tokens.h5");
  for (const index_t first : {0, 24, 48, 1200}) {
    BatchLoader grouped = loader(data(2), file, 0, 1);
    std::vector<index_t> samples;
    for (index_t j = 0; j < 24; ++j) samples.push_back(grouped.sample_of(first, j));
    EXPECT_FALSE(std::ranges::is_sorted(samples));
    std::ranges::sort(samples);
    for (index_t j = 0; j < 24; ++j) EXPECT_EQ(samples[static_cast<std::size_t>(j)], first + j);
  }
}

// Long documents first, in each class in the order of the data: few micro-batches have two classes.
TEST_F(LengthBuckets, GiveMicroBatchesOfOneClass) {
  const TokenFile file(scratch_ / "tokens.h5");
  const BatchLoader one = loader(data(2), file, 0, 1);
  std::vector<std::int32_t> starts(static_cast<std::size_t>(24 * length));
  int mixed = 0, before = 0;
  index_t sample_before = -1;
  std::map<int, int> classes;
  one.load_documents(72, starts);
  for (index_t j = 0; j < 24; ++j) {
    const int here = class_of(std::span(starts).subspan(static_cast<std::size_t>(j * length), length));
    ++classes[here];
    EXPECT_GE(here, before) << j;
    if (j % 2 == 1 && here != before) ++mixed;
    if (here == before && j > 0) EXPECT_GT(one.sample_of(72, j), sample_before);
    before = here;
    sample_before = one.sample_of(72, j);
  }
  EXPECT_GE(classes.size(), 3U);
  EXPECT_LT(mixed, static_cast<int>(classes.size()));
}

// Hash of the step, and the samples of each place, on every grid and from any step on.
TEST_F(LengthBuckets, AreTheSameOnEveryGrid) {
  const TokenFile file(scratch_ / "tokens.h5");
  std::vector<std::uint64_t> hashes;
  for (const auto& [dp, micro_batch] : {std::pair{1, 1}, {1, 2}, {2, 2}, {3, 4}, {4, 1}, {4, 3}}) {
    std::uint64_t hash = 0;
    for (int rank = 0; rank < dp; ++rank) {
      BatchLoader own = loader(data(micro_batch), file, rank, dp), later = loader(data(micro_batch), file, rank, dp);
      const auto size = static_cast<std::size_t>(micro_batch * length);
      std::vector<std::int32_t> inputs(size), targets(size), again(size);
      for (index_t m = 0; m < own.micro_batches(0); ++m) own.load(24, m, inputs.data(), targets.data());
      for (index_t m = 0; m < own.micro_batches(48); ++m) {
        hash += own.load(48, m, inputs.data(), targets.data());
        later.load(48, m, again.data(), targets.data());
        EXPECT_EQ(inputs, again);
      }
      for (index_t j = 0; j < own.per_rank(48); ++j) {
        const index_t place = own.numbers_of(48).of(j) - 48;
        EXPECT_EQ(own.sample_of(48, j), loader(data(1), file, 0, 1).sample_of(48, place));
        // Ranks have neighbouring places at the same time.
        EXPECT_EQ(place / micro_batch % dp, rank);
      }
    }
    hashes.push_back(hash);
  }
  for (const std::uint64_t hash : hashes) EXPECT_EQ(hash, hashes.front());
}

// Places past the end of a validation set are empty, and each of its samples is there once.
TEST_F(LengthBuckets, KeepTheSamplesOfAValidation) {
  const TokenFile file(scratch_ / "tokens.h5");
  deck::DataConfig config = data(2);
  config.validation_path = "here";
  config.validation_batches = 0;
  const BatchLoader all = loader(config, file, 0, 1, Split::validation);
  const index_t sequences = all.number_of_sequences(), last = (all.number_of_batches() - 1) * 24;
  ASSERT_NE(sequences % 24, 0);
  std::vector<std::int32_t> tokens(24);
  all.load_tokens(last, tokens);
  for (index_t j = 0; j < 24; ++j) EXPECT_EQ(tokens[static_cast<std::size_t>(j)] > 0, last + j < sequences);
}

}  // namespace
}  // namespace nanotron::data
