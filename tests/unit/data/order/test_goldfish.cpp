// ranks: 1
#include <gtest/gtest.h>

#include <algorithm>

#include "nanotron/data/order/sequences.hpp"
#include "support/world.hpp"
#include "unit/data/data_config.hpp"
#include "unit/data/scratch.hpp"
#include "unit/data/token_file_maker.hpp"

namespace nanotron::data {
namespace {

constexpr index_t length = 64, passage = 40;
constexpr std::uint32_t vocab_size = 97;

// A file of random tokens in which each sequence has the same passage, at another position.
class GoldfishLoss : public testing::Test {
 protected:
  GoldfishLoss() : scratch_(test::world()), data_(test::data_config(length, 4, 2, deck::Shuffle::none)) {
    std::vector<std::uint32_t> tokens = test::sample_tokens(100 * length + 1, vocab_size);
    for (index_t s = 0; s < 100; ++s) std::copy_n(tokens.begin(), passage, tokens.begin() + s * length + begin_of(s));
    {
      const hdf5::File file = test::new_file(scratch_ / "tokens.h5");
      test::put(file.id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT32, tokens, {tokens.size()});
    }
    file_.emplace(scratch_ / "tokens.h5");
    data_.goldfish_h = 5;
  }

  static index_t begin_of(index_t sequence) { return sequence == 0 ? 0 : sequence % (length - passage); }
  std::vector<std::int32_t> targets(Split split, index_t sequence, const Range& positions) {
    std::vector<std::int32_t> inputs(static_cast<std::size_t>(positions.size())), next(inputs.size());
    make_sequences(data_, *file_, split)->read(sequence, positions, inputs.data(), next.data());
    return next;
  }

  const test::Scratch scratch_;
  deck::DataConfig data_;
  std::optional<TokenFile> file_;
};

TEST_F(GoldfishLoss, DropsTheSameTargetsOfAPassageWhereverItIs) {
  data_.goldfish_k = 3;
  std::vector<bool> of_first;
  for (index_t s = 0; s < 100; ++s) {
    const std::vector<std::int32_t> next = targets(Split::training, s, {0, length});
    std::vector<bool> drops;
    for (index_t p = data_.goldfish_h - 1; p + 1 < passage; ++p)
      drops.push_back(next[static_cast<std::size_t>(begin_of(s) + p)] == no_target);
    if (s == 0) of_first = drops;
    EXPECT_EQ(drops, of_first) << "in sequence " << s;
  }
  EXPECT_GT(std::ranges::count(of_first, true), 0);
  EXPECT_GT(std::ranges::count(of_first, false), 0);
}

TEST_F(GoldfishLoss, DropsOneTargetInK) {
  for (const std::int64_t k : {2, 10}) {
    data_.goldfish_k = k;
    std::ptrdiff_t dropped = 0, all = 0;
    for (index_t s = 0; s < 100; ++s) {
      const std::vector<std::int32_t> next = targets(Split::training, s, {0, length});
      EXPECT_EQ(std::ranges::count(next.begin(), next.begin() + data_.goldfish_h - 1, no_target), 0) << "no context";
      dropped += std::ranges::count(next.begin() + begin_of(s) + passage, next.end(), no_target);
      all += length - begin_of(s) - passage;
    }
    const double share = 1.0 / static_cast<double>(k), n = static_cast<double>(all);
    EXPECT_NEAR(static_cast<double>(dropped), share * n, 4.0 * std::sqrt(n * share * (1.0 - share))) << "k = " << k;
  }
}

// Ranks of a context-parallel group read parts of a sequence.
TEST_F(GoldfishLoss, IsThatOfTheWholeSequenceInAnyPartOfIt) {
  data_.goldfish_k = 3;
  const std::vector<std::int32_t> whole = targets(Split::training, 7, {0, length});
  for (const Range& part : {Range{0, 3}, Range{2, 30}, Range{16, 48}, Range{63, 64}, Range{20, 20}}) {
    const std::vector<std::int32_t> next = targets(Split::training, 7, part);
    EXPECT_TRUE(std::equal(next.begin(), next.end(), whole.begin() + part.begin)) << part.begin;
  }
}

TEST_F(GoldfishLoss, IsForTrainingOnly) {
  data_.goldfish_k = 2;
  data_.validation_fraction = 0.5;
  for (index_t s = 0; s < 10; ++s)
    EXPECT_EQ(std::ranges::count(targets(Split::validation, s, {0, length}), no_target), 0);
}

}  // namespace
}  // namespace nanotron::data
