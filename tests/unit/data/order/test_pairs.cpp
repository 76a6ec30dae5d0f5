// ranks: 1
#include "nanotron/data/order/pairs.hpp"

#include <gtest/gtest.h>

#include <set>

#include "nanotron/data/batch_loader.hpp"
#include "support/world.hpp"
#include "unit/data/data_config.hpp"
#include "unit/data/scratch.hpp"
#include "unit/data/token_file_maker.hpp"

namespace nanotron::data {
namespace {

using test::expect_error;
using test::Scratch;

// Pair i: a prompt of two tokens, a chosen answer of 1 + i mod 3 and a rejected one of 1 + i mod 4. Tokens are their
// own places in the file.
struct MadePairs {
  std::vector<std::uint64_t> documents, lines;
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint8_t> mask;

  explicit MadePairs(index_t pairs) {
    for (index_t i = 0; i < pairs; ++i) {
      lines.push_back(static_cast<std::uint64_t>(2 * i + 1));
      for (const index_t answer : {1 + i % 3, 1 + i % 4}) {
        documents.push_back(tokens.size());
        for (index_t k = 0; k < 2 + answer; ++k) {
          tokens.push_back(static_cast<std::uint32_t>(tokens.size()));
          mask.push_back(k < 2 ? 0 : 1);
        }
      }
    }
  }
  void write(const std::filesystem::path& path, bool with_lines = true, bool with_mask = true) const {
    const hdf5::File file = test::new_file(path);
    test::put(file.id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT32, tokens, {tokens.size()});
    test::put(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, documents, {documents.size()});
    if (with_mask) test::put(file.id(), "loss_mask", H5T_STD_U8LE, H5T_NATIVE_UINT8, mask, {mask.size()});
    if (with_lines) test::put(file.id(), "pairs", H5T_STD_U64LE, H5T_NATIVE_UINT64, lines, {lines.size()});
  }
};

deck::DataConfig pair_config(index_t length, index_t batch = 2) {
  deck::DataConfig data = test::data_config(length, batch, 1, deck::Shuffle::global);
  data.sequences = deck::SequenceKind::pairs;
  data.document_mask = deck::DocumentMask::block_diagonal;
  return data;
}

TEST(PairSequences, HaveBothAnswersAndTheirTargets) {
  const Scratch scratch(test::world());
  MadePairs(3).write(scratch / "p.h5");
  const TokenFile file(scratch / "p.h5");
  const auto sequences = make_sequences(pair_config(9), file, Split::training);
  ASSERT_EQ(sequences->count(), 3);
  std::vector<std::int32_t> in(9), out(9), starts(9);
  sequences->read(1, {0, 9}, in.data(), out.data());  // of 2 + 2 tokens each, from token 6 on
  sequences->document_starts(1, starts);
  EXPECT_EQ(in, (std::vector<std::int32_t>{6, 7, 8, 10, 11, 12, 0, 0, 0}));
  EXPECT_EQ(out, (std::vector<std::int32_t>{-1, 8, 9, -1, 12, 13, -1, -1, -1}));
  EXPECT_EQ(starts, (std::vector<std::int32_t>{0, 0, 0, 3, 3, 3, 6, 7, 8}));
  EXPECT_EQ(sequences->tokens(1), 6);
  std::vector<std::int32_t> part(5), next(5);
  sequences->read(1, {2, 7}, part.data(), next.data());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), in.begin() + 2));
  EXPECT_TRUE(std::equal(next.begin(), next.end(), out.begin() + 2));
  EXPECT_NEAR(sequences->filled(), (4 + 6 + 8) / 27.0, 1e-15);
}

// Of two files, by a loader in random order and by one that takes each once.
TEST(PairSequences, AreCountedThroughAllFiles) {
  const Scratch scratch(test::world());
  MadePairs(5).write(scratch / "a.h5");
  MadePairs(8).write(scratch / "b.h5");
  std::vector<TokenFile> files;
  files.emplace_back(scratch / "a.h5");
  files.emplace_back(scratch / "b.h5");
  deck::DataConfig data = pair_config(9);
  data.path = "0.5 " + (scratch / "a.h5").string() + "\n0.5 " + (scratch / "b.h5").string();
  const SequenceShard whole{{0, 9}, {9, 9}};
  const BatchLoader training(data, 1, files, Split::training, 0, 1, whole, 2);
  BatchLoader once = training.each_once();
  EXPECT_EQ(once.number_of_sequences(), 13);
  EXPECT_EQ(once.number_of_batches(), 7);
  std::set<index_t> seen;
  for (index_t i = 0; i < 13; ++i) seen.insert(once.sequence_of(i));
  EXPECT_EQ(seen.size(), 13U);
  EXPECT_EQ(*seen.rbegin(), 12);
  std::set<index_t> drawn;
  for (index_t i = 0; i < 40; ++i) drawn.insert(training.sequence_of(i));
  EXPECT_EQ(drawn.size(), 13U);
  // The sample after the last one is empty.
  std::vector<std::int32_t> in(9), out(9);
  once.load(12, 1, in.data(), out.data());
  EXPECT_EQ(in, std::vector<std::int32_t>(9, no_token));
  ASSERT_EQ(training.contents().size(), 2U);
  EXPECT_NE(training.contents()[0], training.contents()[1]);
}

TEST(PairSequences, RefuseOtherFilesAndLongPairs) {
  const Scratch scratch(test::world());
  const auto refuse = [&](const char* words, index_t length = 9) {
    const TokenFile file(scratch / "p.h5");
    expect_error(ExitCode::data_error, words, [&] { make_sequences(pair_config(length), file, Split::training); });
  };
  MadePairs made(4);
  made.write(scratch / "p.h5", false);
  refuse("not a file of pairs");
  made.write(scratch / "p.h5", true, false);
  refuse("which tokens are answers");
  made.write(scratch / "p.h5");
  refuse("the pair of line 5 is longer than a sequence", 7);
  refuse("nanotron-pairs --max-length 4", 7);
  MadePairs odd(4);
  odd.lines.pop_back();
  odd.write(scratch / "p.h5");
  refuse("6 documents, two for each pair");
  MadePairs damaged(4);
  damaged.documents[3] = damaged.documents[2];
  damaged.write(scratch / "p.h5");
  refuse("the pair of line 3 has an answer without a token before it");
  std::swap(damaged.documents[4], damaged.documents[5]);
  damaged.write(scratch / "p.h5");
  refuse("/documents is damaged");
}

}  // namespace
}  // namespace nanotron::data
