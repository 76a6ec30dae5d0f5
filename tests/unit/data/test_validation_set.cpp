// ranks: 1
// Validation on several files that are one set.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "nanotron/data/batch_loader.hpp"
#include "support/world.hpp"
#include "unit/data/data_config.hpp"
#include "unit/data/scratch.hpp"
#include "unit/data/token_file_maker.hpp"

namespace nanotron::data {
namespace {

using test::data_config;
using test::Scratch;

// Files of 6, 12 and 30 sequences, one set of 8 samples by weights; then each sequence once.
TEST(ValidationSet, FilesWithoutNamesAreOneValidationSet) {
  const Scratch scratch(test::world());
  std::vector<TokenFile> files;
  const std::array<index_t, 3> counts{6, 12, 30};
  auto data = data_config(8, 8, 8, deck::Shuffle::global);
  for (const index_t count : counts) {
    const auto path = scratch / fmt::format("{}.h5", count);
    std::vector<std::uint32_t> tokens;
    for (index_t i = 0; i <= 8 * count; ++i) tokens.push_back(static_cast<std::uint32_t>(100 * files.size() + i / 8));
    test::put(test::new_file(path).id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT32, tokens, {tokens.size()});
    files.emplace_back(path);
  }
  data.validation_path = "4 a\n2 b\n2 c";
  data.validation_batches = 1;
  // The first token of each sample says its file and sequence.
  const auto samples_of = [&](index_t batches) {
    BatchLoader validation(data, 1, files, Split::validation, 0, 1, {{0, 8}, {8, 8}}, 8);
    EXPECT_EQ(validation.number_of_batches(), batches);
    std::vector<std::int32_t> inputs(64), targets(64), first;
    for (index_t batch = 0; batch < batches; ++batch) {
      validation.load(8 * batch, 0, inputs.data(), targets.data());
      for (std::size_t i = 0; i < 64; i += 8) {
        if (inputs[i] != no_token) first.push_back(inputs[i]);
      }
    }
    std::ranges::sort(first);
    return first;
  };
  EXPECT_EQ(samples_of(1), (std::vector<std::int32_t>{0, 2, 3, 5, 103, 109, 207, 222}));
  data.validation_path = "6 a\n1 b\n1 c";
  EXPECT_EQ(samples_of(1), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 106, 215}));
  data.validation_path = "a\nb\nc";  // by their sequences
  EXPECT_EQ(samples_of(1), (std::vector<std::int32_t>{3, 103, 109, 203, 209, 215, 221, 227}));
  data.validation_batches = 0;
  std::vector<std::int32_t> all;
  for (std::size_t k = 0; k < 3; ++k) {
    for (index_t i = 0; i < counts[k]; ++i) all.push_back(static_cast<std::int32_t>(100 * static_cast<index_t>(k) + i));
  }
  EXPECT_EQ(samples_of(6), all);
}

}  // namespace
}  // namespace nanotron::data
