// ranks: 1
#include "nanotron/data/order/documents.hpp"

#include <gtest/gtest.h>

#include "nanotron/data/batch_loader.hpp"
#include "support/world.hpp"
#include "unit/data/data_config.hpp"
#include "unit/data/scratch.hpp"
#include "unit/data/token_file_maker.hpp"

namespace nanotron::data {
namespace {

using test::data_config;
using test::Scratch;

constexpr std::uint32_t vocab_size = 251;

// Every prediction inside a document once, none between documents, in sequences that are read in any parts.
TEST(PackedDocuments, HaveEveryPredictionOnce) {
  const Scratch scratch(test::world());
  constexpr index_t tokens = 997, length = 16;
  std::vector<std::uint64_t> starts;
  for (std::uint64_t at = 0, i = 0; at < tokens; at += 1 + i * i % 41, ++i) starts.push_back(at);
  {
    const hdf5::File file = test::new_file(scratch / "tokens.h5");
    std::vector<std::uint32_t> numbers(tokens);  // every token is its own place
    for (index_t i = 0; i < tokens; ++i) numbers[static_cast<std::size_t>(i)] = static_cast<std::uint32_t>(i);
    test::put(file.id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT32, numbers, {numbers.size()});
    test::put(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, starts, {starts.size()});
  }
  const TokenFile file(scratch / "tokens.h5");
  auto data = data_config(length, 4, 2, deck::Shuffle::none);
  data.document_mask = deck::DocumentMask::block_diagonal;
  data.sequences = deck::SequenceKind::documents;
  data.validation_fraction = 0.2;
  std::vector<int> seen(tokens, 0);
  index_t positions = 0, targets = 0;
  for (const Split split : {Split::training, Split::validation}) {
    const auto sequences = make_sequences(data, file, split);
    positions += sequences->count() * length;
    std::vector<std::int32_t> inputs(length), next(length), begins(length), part(length), part_next(length);
    for (index_t s = 0; s < sequences->count(); ++s) {
      sequences->read(s, {0, length}, inputs.data(), next.data());
      sequences->document_starts(s, begins);
      index_t here = 0;
      for (std::size_t i = 0; i < length; ++i) {
        if (next[i] == no_target) {
          EXPECT_EQ(begins[i], static_cast<int>(i));
          EXPECT_EQ(inputs[i], 0);
          EXPECT_GE(static_cast<index_t>(i), sequences->tokens(s));
          continue;
        }
        ++here;
        ++seen[static_cast<std::size_t>(inputs[i])];
        EXPECT_EQ(next[i], inputs[i] + 1);
        EXPECT_FALSE(std::ranges::binary_search(starts, static_cast<std::uint64_t>(next[i])))
            << "into another document";
        if (begins[i] < static_cast<int>(i)) {
          EXPECT_EQ(inputs[i], inputs[i - 1] + 1);
        }
      }
      EXPECT_EQ(sequences->tokens(s), here);
      targets += here;
      sequences->read(s, {5, 12}, part.data(), part_next.data());
      EXPECT_TRUE(std::equal(part.begin(), part.begin() + 7, inputs.begin() + 5));
      EXPECT_TRUE(std::equal(part_next.begin(), part_next.begin() + 7, next.begin() + 5));
    }
  }
  for (index_t i = 0; i < tokens; ++i) {
    const bool is_last = i + 1 == tokens || std::ranges::binary_search(starts, static_cast<std::uint64_t>(i + 1));
    EXPECT_EQ(seen[static_cast<std::size_t>(i)], is_last ? 0 : 1) << i;
  }
  EXPECT_GT(static_cast<double>(targets), 0.93 * static_cast<double>(positions));
}

// 1,000 documents of 5 to 11 tokens, one in fifty held out, from all over the file.
TEST(PackedDocuments, AreHeldOutAllOverTheFile) {
  const Scratch scratch(test::world());
  std::vector<std::uint64_t> starts;
  std::uint64_t size = 0;
  for (std::uint64_t i = 0; i < 1000; ++i, size += 5 + i % 7) starts.push_back(size);
  {
    const hdf5::File file = test::new_file(scratch / "tokens.h5");
    std::vector<std::uint32_t> numbers(size);
    for (std::size_t i = 0; i < size; ++i) numbers[i] = static_cast<std::uint32_t>(i);
    test::put(file.id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT32, numbers, {numbers.size()});
    test::put(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, starts, {starts.size()});
  }
  const TokenFile file(scratch / "tokens.h5");
  auto data = data_config(16, 4, 2, deck::Shuffle::none);
  data.document_mask = deck::DocumentMask::block_diagonal;
  data.sequences = deck::SequenceKind::documents;
  data.validation_fraction = 0.02;
  const auto held = make_sequences(data, file, Split::validation);
  std::vector<std::int32_t> inputs(16), next(16);
  std::array<int, 8> of_part{};  // targets from each eighth of the file
  int targets = 0;
  for (index_t s = 0; s < held->count(); ++s) {
    held->read(s, {0, 16}, inputs.data(), next.data());
    for (std::size_t i = 0; i < 16; ++i) {
      if (next[i] == no_target) continue;
      ++targets;
      ++of_part[static_cast<std::size_t>(inputs[i]) * 8 / size];
    }
  }
  EXPECT_NEAR(targets, 0.02 * static_cast<double>(size - 1000), 10.0);
  for (const int part : of_part) EXPECT_NEAR(part, targets / 8.0, 12.0);
  data.validation_fraction = 1e-9;  // at least one
  EXPECT_EQ(make_sequences(data, file, Split::validation)->count(), 1);
}

// 10 + 6, 9 + 4 + 3: the fullest sequence with room, not the first.
TEST(PackedDocuments, GoWhereTheyFitBest) {
  const Scratch scratch(test::world());
  {
    const hdf5::File file = test::new_file(scratch / "tokens.h5");
    const std::vector<std::uint64_t> starts{0, 11, 21, 28, 33};  // 10, 9, 6, 4 and 3 predictions
    test::put(file.id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT32, test::sample_tokens(37, vocab_size), {37});
    test::put(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, starts, {starts.size()});
  }
  const TokenFile file(scratch / "tokens.h5");
  auto data = data_config(16, 1, 1, deck::Shuffle::none);
  data.document_mask = deck::DocumentMask::block_diagonal;
  data.sequences = deck::SequenceKind::documents;
  const auto sequences = make_sequences(data, file, Split::training);
  ASSERT_EQ(sequences->count(), 2);
  EXPECT_EQ(sequences->filled(), 1.0);
  std::vector<std::int32_t> begins(16);
  sequences->document_starts(0, begins);
  EXPECT_EQ(begins, (std::vector<std::int32_t>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 10, 10, 10, 10, 10}));
  sequences->document_starts(1, begins);
  EXPECT_EQ(begins, (std::vector<std::int32_t>{0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 13, 13, 13}));
}

}  // namespace
}  // namespace nanotron::data
