// ranks: 1
#include "nanotron/data/batch_loader.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <new>
#include <set>

#include "support/world.hpp"
#include "unit/data/data_config.hpp"
#include "unit/data/scratch.hpp"
#include "unit/data/token_file_maker.hpp"

namespace {
std::atomic<long> allocations{0};
}
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes ? bytes : 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace nanotron::data {
namespace {

using test::data_config;
using test::expect_error;
using test::Scratch;

constexpr std::uint32_t vocab_size = 251;

struct StepOutcome {
  std::uint64_t hash = 0;
  std::vector<std::int32_t> inputs, targets;  // in the order of the samples
};

StepOutcome run_step(const deck::DataConfig& data, const TokenFile& file, index_t step, int dp) {
  StepOutcome result;
  const auto size = static_cast<std::size_t>(data.micro_batch_size * data.sequence_length);
  for (int r = 0; r < dp; ++r) {
    BatchLoader loader(data, 77, file, Split::training, r, dp);
    std::vector<std::int32_t> inputs(size), targets(size);
    for (index_t m = 0; m < loader.micro_batches(step * data.global_batch_size); ++m) {
      result.hash += loader.load(step * data.global_batch_size, m, inputs.data(), targets.data());
      result.inputs.insert(result.inputs.end(), inputs.begin(), inputs.end());
      result.targets.insert(result.targets.end(), targets.begin(), targets.end());
    }
  }
  return result;
}

TEST(BatchLoader, UnshuffledFollowsTheContract) {
  const Scratch scratch(test::world());
  test::make_token_file(scratch / "tokens.h5", 10 * 8 + 1, vocab_size);
  const TokenFile file(scratch / "tokens.h5");
  const auto tokens = test::sample_tokens(81, vocab_size);
  const auto data = data_config(8, 4, 2, deck::Shuffle::none);
  BatchLoader loader(data, 1, file, Split::training, 1, 2);
  EXPECT_EQ(loader.number_of_sequences(), 10);
  EXPECT_EQ(loader.number_of_batches(), 2);
  EXPECT_EQ(loader.micro_batches(0), 1);
  std::vector<std::int32_t> inputs(16), targets(16);
  for (index_t step = 0; step < 6; ++step) {
    loader.load(step * 4, 0, inputs.data(), targets.data());
    for (index_t j = 0; j < 2; ++j)
      for (index_t s = 0; s < 8; ++s) {
        const index_t sequence = (step * 4 + 2 + j) % 10;
        ASSERT_EQ(inputs[std::size_t(j * 8 + s)], int(tokens[std::size_t(sequence * 8 + s)]));
        ASSERT_EQ(targets[std::size_t(j * 8 + s)], int(tokens[std::size_t(sequence * 8 + s + 1)]));
      }
  }
}

TEST(BatchLoader, TheGridDoesNotChangeWhatAStepSees) {
  const Scratch scratch(test::world());
  test::make_token_file(scratch / "tokens.h5", 16 * 101 + 5, vocab_size);
  const TokenFile file(scratch / "tokens.h5");
  std::set<std::uint64_t> hashes;
  for (const index_t step : {0, 3, 8, 9, 40}) {
    const auto serial = run_step(data_config(16, 12, 12, deck::Shuffle::global), file, step, 1);
    hashes.insert(serial.hash);
    for (const int dp : {1, 2, 3, 4, 6, 12})
      for (const index_t micro : {1, 2, 3, 4, 6}) {
        if (12 % (dp * micro) != 0) continue;
        const auto other = run_step(data_config(16, 12, micro, deck::Shuffle::global), file, step, dp);
        EXPECT_EQ(other.hash, serial.hash);
        EXPECT_EQ(other.inputs, serial.inputs);
        EXPECT_EQ(other.targets, serial.targets);
      }
  }
  EXPECT_EQ(hashes.size(), 5u);
}

// Even when the batch does not divide the data, each epoch has every sequence once.
TEST(BatchLoader, NothingIsLostOrRepeatedInAnEpoch) {
  const Scratch scratch(test::world());
  {
    const hdf5::File file = test::new_file(scratch / "tokens.h5");
    std::vector<std::uint32_t> tokens(4 * 35 + 1);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = std::uint32_t(i / 4);
    test::put(file.id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT32, tokens, {tokens.size()});
  }
  const TokenFile file(scratch / "tokens.h5");
  const auto data = data_config(4, 6, 3, deck::Shuffle::global);
  std::map<std::int32_t, int> count;
  for (index_t step = 0; step < 35; ++step) {  // 6 epochs of 35 sequences
    const auto outcome = run_step(data, file, step, 2);
    for (std::size_t i = 0; i < outcome.inputs.size(); i += 4) ++count[outcome.inputs[i]];
  }
  EXPECT_EQ(count.size(), 35u);
  for (const auto& [sequence, times] : count) EXPECT_EQ(times, 6) << sequence;
}

// Of 40 sequences 10 in 10 pieces: after each three of training one of validation.
TEST(BatchLoader, ValidationIsSpreadOverTheFile) {
  const Scratch scratch(test::world());
  test::make_token_file(scratch / "tokens.h5", 8 * 40 + 1, vocab_size);
  const TokenFile file(scratch / "tokens.h5");
  auto data = data_config(8, 4, 2, deck::Shuffle::global);
  data.validation_fraction = 0.25;
  const BatchLoader training(data, 1, file, Split::training, 0, 1);
  BatchLoader validation(data, 1, file, Split::validation, 0, 1);
  EXPECT_EQ(training.number_of_sequences(), 30);
  EXPECT_EQ(validation.number_of_sequences(), 10);
  EXPECT_EQ(validation.number_of_batches(), 3);  // 4, 4 and 2 sequences
  const auto tokens = test::sample_tokens(321, vocab_size);
  std::vector<std::int32_t> inputs(16), targets(16);
  for (index_t i = 0; i < 12; i += 2) {
    validation.load(i / 4 * 4, i / 2 % 2, inputs.data(), targets.data());
    for (index_t j = 0; j < 2; ++j) {
      const index_t sequence = 4 * ((i + j) % 10) + 3;
      for (index_t p = 0; p < 8; ++p) {
        const int input = i + j < 10 ? int(tokens[std::size_t(sequence * 8 + p)]) : no_token;
        ASSERT_EQ(inputs[std::size_t(j * 8 + p)], input) << i + j;
        const int target = i + j < 10 ? int(tokens[std::size_t(sequence * 8 + p + 1)]) : no_target;
        ASSERT_EQ(targets[std::size_t(j * 8 + p)], target) << i + j;
      }
    }
  }
  data.validation_path = "another file";
  EXPECT_EQ(BatchLoader(data, 1, file, Split::validation, 0, 1).number_of_sequences(), 40);
  EXPECT_EQ(BatchLoader(data, 1, file, Split::training, 0, 1).number_of_sequences(), 40);
}

// Of 3 held-out sequences and a batch of 8 the last 5 samples are empty.
TEST(BatchLoader, TheLastBatchOfAValidationHasEmptySamples) {
  const Scratch scratch(test::world());
  test::make_token_file(scratch / "tokens.h5", 8 * 30 + 1, vocab_size);
  const TokenFile file(scratch / "tokens.h5");
  auto data = data_config(8, 8, 8, deck::Shuffle::none);
  data.validation_fraction = 0.1;
  BatchLoader validation(data, 1, file, Split::validation, 0, 1);
  std::vector<std::int32_t> inputs(64, 7), targets(64, 7), tokens(8);
  validation.load(0, 0, inputs.data(), targets.data());
  validation.load_tokens(0, tokens);
  EXPECT_EQ(std::ranges::count(targets, no_target), 40);
  EXPECT_TRUE(std::all_of(inputs.begin() + 24, inputs.end(), [](std::int32_t t) { return t == no_token; }));
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{8, 8, 8, 0, 0, 0, 0, 0}));
  EXPECT_EQ(validation.tokens(0), 24);
  EXPECT_EQ(BatchLoader(data, 1, file, Split::training, 0, 1).tokens(0), 64);
}

// One batch of 4 samples of 10 sequences: the middle of each quarter.
TEST(BatchLoader, AValidationOfFewBatchesIsSpreadOverTheSplit) {
  const Scratch scratch(test::world());
  test::make_token_file(scratch / "tokens.h5", 8 * 10 + 1, vocab_size);
  const TokenFile file(scratch / "tokens.h5");
  auto data = data_config(8, 4, 4, deck::Shuffle::global);
  data.validation_path = "this file";
  data.validation_batches = 1;
  BatchLoader validation(data, 1, file, Split::validation, 0, 1);
  EXPECT_EQ(validation.number_of_batches(), 1);
  const auto tokens = test::sample_tokens(81, vocab_size);
  std::vector<std::int32_t> inputs(32), targets(32);
  validation.load(0, 0, inputs.data(), targets.data());
  for (const auto& [i, sequence] : {std::pair{0, 1}, {1, 3}, {2, 6}, {3, 8}})
    EXPECT_EQ(inputs[std::size_t(i * 8)], int(tokens[std::size_t(sequence * 8)])) << i;
  data.validation_batches = 0;
  EXPECT_EQ(BatchLoader(data, 1, file, Split::validation, 0, 1).number_of_batches(), 3);
}

TEST(BatchLoader, RefusesTooLittleDataAndUnevenBatches) {
  const Scratch scratch(test::world());
  test::make_token_file(scratch / "tokens.h5", 8 * 4, vocab_size);  // one token short of 4
  const TokenFile file(scratch / "tokens.h5");
  auto data = data_config(8, 4, 2, deck::Shuffle::none);
  expect_error(ExitCode::data_error, "3 sequences", [&] { BatchLoader(data, 1, file, Split::training, 0, 1); });
  expect_error(ExitCode::data_error, "the validation data have no sequence",
               [&] { BatchLoader(data, 1, file, Split::validation, 0, 1); });
  expect_error(ExitCode::data_error, "or raise data%validation_fraction",
               [&] { BatchLoader(data, 1, file, Split::validation, 0, 1); });
  {
    auto another = data_config(32, 1, 1, deck::Shuffle::none);
    another.validation_path = "this file";
    expect_error(ExitCode::data_error, "(32 tokens in the file)",
                 [&] { BatchLoader(another, 1, file, Split::validation, 0, 1); });
    expect_error(ExitCode::data_error, "another file in data%validation_path",
                 [&] { BatchLoader(another, 1, file, Split::validation, 0, 1); });
  }
  data.global_batch_size = 3;
  expect_error(ExitCode::deck_error, "divide", [&] { BatchLoader(data, 1, file, Split::training, 0, 1); });
}

TEST(BatchLoader, ShardsAreTheirPartOfEachSequence) {
  const Scratch scratch(test::world());
  test::make_token_file(scratch / "tokens.h5", 13 * 20 + 1, vocab_size);
  const TokenFile file(scratch / "tokens.h5");
  const auto data = data_config(13, 4, 2, deck::Shuffle::global);
  BatchLoader whole(data, 3, file, Split::training, 0, 1);
  std::vector<std::int32_t> inputs(26), targets(26), part(26), part_targets(26);
  for (const ContextDegrees degrees : {ContextDegrees{3, 1}, {1, 3}}) {
    const SequenceLayout layout(degrees, 13);
    for (index_t m = 0; m < 2; ++m) {
      const std::uint64_t hash = whole.load(4, m, inputs.data(), targets.data());
      std::uint64_t sum = 0;
      for (int r = 0; r < 3; ++r) {
        BatchLoader loader(data, 3, {&file, 1}, Split::training, 0, 1, layout[r], 4);
        sum += loader.load(4, m, part.data(), part_targets.data());
        const index_t length = layout[r].length();
        for (index_t i = 0; i < 2 * length; ++i) {
          const auto at = static_cast<std::size_t>(i / length * 13 + layout[r].position_of(i % length));
          EXPECT_EQ(part[static_cast<std::size_t>(i)], inputs[at]);
          EXPECT_EQ(part_targets[static_cast<std::size_t>(i)], targets[at]);
        }
      }
      EXPECT_EQ(sum, hash);
    }
  }
}

// A token file with these documents.
void make_documents(const std::filesystem::path& path, const std::vector<std::uint64_t>& starts) {
  const hdf5::File file = test::new_file(path);
  test::put(file.id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT32, test::sample_tokens(41, vocab_size), {41});
  test::put(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, starts, {starts.size()});
}

TEST(BatchLoader, DocumentsBeginWhereTheFileSays) {
  const Scratch scratch(test::world());
  make_documents(scratch / "tokens.h5", {3, 12, 12, 20, 21, 33});
  const TokenFile file(scratch / "tokens.h5");
  auto data = data_config(10, 4, 2, deck::Shuffle::none);
  data.document_mask = deck::DocumentMask::block_diagonal;
  const BatchLoader loader(data, 1, file, Split::training, 1, 2);  // the file's sequences 2 and 3
  std::vector<std::int32_t> starts(20);
  loader.load_documents(0, starts);
  EXPECT_EQ(starts, (std::vector<std::int32_t>{0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 3, 3, 3, 3, 3, 3, 3}));
  BatchLoader(data, 1, file, Split::training, 0, 2).load_documents(0, starts);
  EXPECT_EQ(starts, (std::vector<std::int32_t>{0, 0, 0, 3, 3, 3, 3, 3, 3, 3, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2}));
}

TEST(BatchLoader, RefusesAMaskWithoutGoodDocuments) {
  const Scratch scratch(test::world());
  auto data = data_config(10, 4, 2, deck::Shuffle::none);
  data.document_mask = deck::DocumentMask::block_diagonal;
  const auto refused = [&](const std::string& name, const std::string& words) {
    const TokenFile file(scratch / name);
    expect_error(ExitCode::data_error, words, [&] { BatchLoader(data, 1, file, Split::training, 0, 1); });
  };
  test::make_token_file(scratch / "none.h5", 41, vocab_size);
  refused("none.h5", "document_mask = 'none'");
  make_documents(scratch / "falls.h5", {3, 12, 11});
  refused("falls.h5", "11 at index 2");
  make_documents(scratch / "far.h5", {3, 12, 99});
  refused("far.h5", "at most 41");
}

// Neighbours are dealt out in turn: of 12 samples, two at a time, rank 1 of 3 gets 2, 3, 8, 9.
TEST(BatchLoader, DealsNeighboursInTurn) {
  const Scratch scratch(test::world());
  test::make_token_file(scratch / "tokens.h5", 13 * 40 + 1, vocab_size);
  const TokenFile file(scratch / "tokens.h5");
  const auto data = data_config(13, 12, 1, deck::Shuffle::global);
  const SequenceLayout layout({}, 13);
  BatchLoader whole(data, 3, file, Split::training, 0, 1);
  BatchLoader part(data, 3, {&file, 1}, Split::training, 1, 3, layout[0], 2);
  std::vector<std::int32_t> expected(13), inputs(13), targets(13);
  for (const auto& [mine, sample] : {std::pair{0, 2}, {1, 3}, {2, 8}, {3, 9}}) {
    const std::uint64_t hash = whole.load(24, sample, expected.data(), targets.data());
    EXPECT_EQ(part.load(24, mine, inputs.data(), targets.data()), hash);
    EXPECT_EQ(inputs, expected) << sample;
  }
}

// In a stream and in packed documents, in whole sequences and in parts: the targets whose token has a 0 are no targets.
TEST(BatchLoader, ALossMaskIgnoresTargets) {
  const Scratch scratch(test::world());
  std::vector<std::uint8_t> mask(61);
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 0 || i > 40;
  {
    const hdf5::File file = test::new_file(scratch / "tokens.h5");
    std::vector<std::uint32_t> tokens(61);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = std::uint32_t(i);
    test::put(file.id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT32, tokens, {61});
    test::put(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, std::vector<std::uint64_t>{0, 7, 20, 48}, {4});
    test::put(file.id(), "loss_mask", H5T_STD_U8LE, H5T_NATIVE_UINT8, mask, {61});
  }
  const TokenFile file(scratch / "tokens.h5");
  for (const auto kind : {deck::SequenceKind::stream, deck::SequenceKind::documents}) {
    auto data = data_config(12, 4, 4, deck::Shuffle::none);
    data.document_mask = deck::DocumentMask::block_diagonal;
    data.sequences = kind;
    for (const int parts : {1, 3}) {
      const SequenceLayout layout({parts, 1}, 12);
      index_t ignored = 0;
      for (int r = 0; r < parts; ++r) {
        BatchLoader loader(data, 1, {&file, 1}, Split::training, 0, 1, layout[r], 4);
        std::vector<std::int32_t> inputs(static_cast<std::size_t>(4 * layout[r].length())), targets(inputs.size());
        loader.load(0, 0, inputs.data(), targets.data());
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          if (targets[i] == no_target && inputs[i] == 0) continue;  // an unused position
          const auto target = static_cast<std::size_t>(inputs[i]) + 1;
          ASSERT_EQ(targets[i], mask[target] == 1 ? static_cast<int>(target) : no_target);
          ignored += targets[i] == no_target;
        }
      }
      EXPECT_GE(ignored, 20);
    }
  }
}

TEST(BatchLoader, RefusesADamagedLossMask) {
  const Scratch scratch(test::world());
  const auto make = [&](const char* name, std::uint8_t value, std::size_t count, hid_t type) {
    test::make_token_file(scratch / name, 41, vocab_size);
    const hdf5::File file(H5Fopen((scratch / name).c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    test::put(file.id(), "loss_mask", type, H5T_NATIVE_UINT8, std::vector<std::uint8_t>(count, value), {count});
  };
  make("short.h5", 1, 40, H5T_STD_U8LE);
  expect_error(ExitCode::data_error, "41 values of uint8", [&] { TokenFile(scratch / "short.h5"); });
  make("wide.h5", 1, 41, H5T_STD_I32LE);
  expect_error(ExitCode::data_error, "signed integers of 4 bytes", [&] { TokenFile(scratch / "wide.h5"); });
  make("two.h5", 2, 41, H5T_STD_U8LE);
  const TokenFile file(scratch / "two.h5");
  BatchLoader loader(data_config(8, 4, 4, deck::Shuffle::none), 1, file, Split::training, 0, 1);
  std::vector<std::int32_t> inputs(32), targets(32);
  expect_error(ExitCode::data_error, "2 at position 1", [&] { loader.load(0, 0, inputs.data(), targets.data()); });
}

TEST(BatchLoader, AllocatesNothingWhenLoading) {
  const Scratch scratch(test::world());
  test::make_token_file(scratch / "tokens.h5", 64 * 100 + 1, vocab_size);
  const TokenFile file(scratch / "tokens.h5");
  const SequenceLayout layout({2, 1}, 64);
  BatchLoader loader(data_config(64, 8, 4, deck::Shuffle::global), 1, {&file, 1}, Split::training, 0, 1, layout[0], 8);
  std::vector<std::int32_t> inputs(256), targets(256);
  const long before = allocations;
  for (index_t step = 0; step < 50; ++step)
    for (index_t m = 0; m < 2; ++m) loader.load(step * 8, m, inputs.data(), targets.data());
  EXPECT_EQ(allocations - before, 0);
}

}  // namespace
}  // namespace nanotron::data
