// ranks: 1
// Choices as sequences: every token of a choice is a target once, behind its own context, in whatever parts it is read.

#include "nanotron/data/choices/choice_sequences.hpp"

#include <gtest/gtest.h>

#include <map>

#include "nanotron/base/error.hpp"
#include "nanotron/data/order/documents.hpp"
#include "support/world.hpp"
#include "unit/data/scratch.hpp"
#include "unit/data/token_file_maker.hpp"

namespace nanotron::data {
namespace {

using Values = std::vector<std::uint64_t>;

struct Tables {
  Values lengths, scored, characters, bytes, counts, answers, lines;
};

// Choice c has 2 + (c * c) % 23 tokens, every token is its own place in the file.
Tables tables() {
  Tables t;
  for (std::uint64_t c = 0; c < 30; ++c) {
    t.lengths.push_back(2 + c * c % 23);
    t.scored.push_back(1 + c % std::min<std::uint64_t>(t.lengths.back() - 1, 8));
    t.characters.push_back(1 + c % 4);
    t.bytes.push_back(2 + c % 5);
  }
  for (std::uint64_t q = 0; q < 10; ++q) {
    t.counts.push_back(3);
    t.answers.push_back(q % 3);
    t.lines.push_back(2 * q + 1);
  }
  for (std::size_t c = 0; c < 30; ++c) t.bytes[c] = std::max(t.bytes[c], t.characters[c]);
  return t;
}

void write(const std::filesystem::path& path, const Tables& t) {
  const hdf5::File file = test::new_file(path);
  const auto put = [&](hid_t parent, const char* name, const auto& values) {
    test::put(parent, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, values, {values.size()});
  };
  Values begins;
  std::vector<std::uint32_t> tokens;
  for (const std::uint64_t length : t.lengths) {
    begins.push_back(tokens.size());
    for (std::uint64_t i = 0; i < length; ++i) tokens.push_back(static_cast<std::uint32_t>(tokens.size()));
  }
  test::put(file.id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT32, tokens, {tokens.size()});
  put(file.id(), "documents", begins);
  const hdf5::Group choices(H5Gcreate2(file.id(), "choices", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  put(choices.id(), "tokens", t.scored);
  put(choices.id(), "characters", t.characters);
  put(choices.id(), "bytes", t.bytes);
  const hdf5::Group questions(H5Gcreate2(file.id(), "questions", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  put(questions.id(), "choices", t.counts);
  put(questions.id(), "answer", t.answers);
  put(questions.id(), "line", t.lines);
}

class ChoicesOf : public testing::TestWithParam<ChoicePacking> {};

TEST_P(ChoicesOf, HaveEveryTargetOnceBehindItsContext) {
  const test::Scratch scratch(test::world());
  write(scratch / "questions.h5", tables());
  const ChoiceFile file(scratch / "questions.h5");
  constexpr index_t length = 16;
  const ChoiceSequences sequences(file, length, GetParam());
  std::map<std::int32_t, int> targets;
  std::vector<std::int32_t> inputs(length), next(length), starts(length), part(length), part_next(length);
  index_t filled = 0;
  for (index_t s = 0; s < sequences.count(); ++s) {
    sequences.read(s, {0, length}, inputs.data(), next.data());
    sequences.document_starts(s, starts);
    index_t here = 0;
    for (const auto& segment : sequences.segments(s)) {
      const Choice& choice = file.choices()[static_cast<std::size_t>(segment.choice)];
      EXPECT_EQ(segment.token + segment.length + 1, choice.tokens.end);
      EXPECT_EQ(segment.length, std::min(choice.tokens.size() - 1, length)) << "context is cut only where it must be";
      for (index_t p = segment.position; p < segment.position + segment.length; ++p) {
        const auto i = static_cast<std::size_t>(p);
        EXPECT_EQ(inputs[i], segment.token + p - segment.position);
        EXPECT_EQ(starts[i], segment.position);
        const bool scored = p >= segment.first_target();
        EXPECT_EQ(next[i], scored ? inputs[i] + 1 : no_target);
        if (scored) ++targets[next[i]], ++here;
      }
      filled += segment.length;
    }
    EXPECT_EQ(sequences.targets(s), here);
    const index_t tokens = sequences.tokens(s), last = sequences.segments(s).back().position;
    EXPECT_EQ(tokens, last + sequences.segments(s).back().length);
    EXPECT_TRUE(std::all_of(inputs.begin() + tokens, inputs.end(), [](std::int32_t t) { return t == 0; })) << "empty";
    EXPECT_EQ(std::ranges::count_if(next, [](std::int32_t t) { return t != no_target; }), here);
    for (index_t begin = 0; begin < length; begin += 5) {
      const Range range{begin, std::min(begin + 7, length)};
      sequences.read(s, range, part.data(), part_next.data());
      EXPECT_TRUE(std::equal(part.begin(), part.begin() + range.size(), inputs.begin() + begin));
      EXPECT_TRUE(std::equal(part_next.begin(), part_next.begin() + range.size(), next.begin() + begin));
    }
  }
  index_t wanted = 0;
  for (const Choice& choice : file.choices()) {
    wanted += choice.scored;
    for (index_t t = choice.tokens.end - choice.scored; t < choice.tokens.end; ++t) {
      EXPECT_EQ(targets[static_cast<std::int32_t>(t)], 1);
    }
  }
  EXPECT_EQ(static_cast<index_t>(targets.size()), wanted);
  EXPECT_GT(sequences.cut(), 0);
  EXPECT_DOUBLE_EQ(sequences.filled(), static_cast<double>(filled) / static_cast<double>(sequences.count() * length));
  EXPECT_EQ(sequences.count() == 30, GetParam() == ChoicePacking::one);
}

INSTANTIATE_TEST_SUITE_P(Packing, ChoicesOf, testing::Values(ChoicePacking::one, ChoicePacking::several));

TEST(ChoiceFiles, NameTheQuestion) {
  const test::Scratch scratch(test::world());
  write(scratch / "questions.h5", tables());
  const ChoiceFile file(scratch / "questions.h5");
  EXPECT_EQ(file.name_of(0), "choice 1 of the question in line 1");
  EXPECT_EQ(file.name_of(5), "choice 3 of the question in line 3");
  EXPECT_EQ(file.name_of(29), "choice 3 of the question in line 19");
  Tables other = tables();
  other.answers[3] = 2 - other.answers[3];
  other.answers[4] = 0;
  write(scratch / "other.h5", other);
  EXPECT_NE(ChoiceFile(scratch / "other.h5").hash_of_tables(), file.hash_of_tables());
}

// A bit that moves the end of a choice, or is in a table, and leaves a file that can be.
TEST(ChoiceFiles, CompareTheirTablesWithHashes) {
  const test::Scratch scratch(test::world());
  const std::filesystem::path path = scratch / "questions.h5";
  const auto flipped = [&](const std::string& name, hsize_t element, std::uint64_t bit) {
    const hdf5::File file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    const hdf5::Dataset dataset = hdf5::open_dataset(file.id(), name, path.string());
    const hdf5::Dataspace space(H5Dget_space(dataset.id()));
    std::vector<std::uint64_t> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.id())));
    H5Dread(dataset.id(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    values[element] ^= bit;
    H5Dwrite(dataset.id(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  };
  const Tables t = tables();
  write(path, t);
  flipped("documents", 4, 1);
  EXPECT_NO_THROW(ChoiceFile{path}) << "without hashes";
  write(path, t);
  add_hashes(path);
  flipped("documents", 4, 1);
  test::expect_error(ExitCode::data_error, "damaged in block 0 of /documents", [&] { ChoiceFile{path}; });
  flipped("documents", 4, 1);
  {
    const hdf5::File file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    const hdf5::Group of(H5Gcreate2(file.id(), "hashes/choices", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    test::put(of.id(), "bytes", H5T_STD_U64LE, H5T_NATIVE_UINT64,
              Values{block_hash({reinterpret_cast<const char*>(t.bytes.data()), 8 * t.bytes.size()})}, {1});
  }
  EXPECT_NO_THROW(ChoiceFile{path});
  flipped("choices/bytes", 3, 8);
  test::expect_error(ExitCode::data_error, "damaged in block 0 of /choices/bytes", [&] { ChoiceFile{path}; });
}

TEST(ChoiceFiles, RefuseAChoiceLongerThanASequence) {
  const test::Scratch scratch(test::world());
  write(scratch / "questions.h5", tables());
  const ChoiceFile file(scratch / "questions.h5");
  EXPECT_NO_THROW(ChoiceSequences(file, 8, ChoicePacking::several));
  EXPECT_THROW(ChoiceSequences(file, 4, ChoicePacking::several), Error);
}

TEST(BestFit, TakesTheFullestBinThatHasRoom) {
  BestFit bins(10);
  EXPECT_EQ(bins.place(7), 0u);
  EXPECT_EQ(bins.place(6), 1u);
  EXPECT_EQ(bins.place(4), 1u);
  EXPECT_EQ(bins.place(3), 0u);
  EXPECT_EQ(bins.place(1), 2u);
  EXPECT_EQ(bins.bins(), 3u);
}

}  // namespace
}  // namespace nanotron::data
