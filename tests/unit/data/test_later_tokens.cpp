// ranks: 1
// BatchLoader::Later: the tokens some positions later, in shards and documents.
#include <gtest/gtest.h>

#include <algorithm>

#include "nanotron/data/batch_loader.hpp"
#include "support/world.hpp"
#include "unit/data/data_config.hpp"
#include "unit/data/scratch.hpp"
#include "unit/data/token_file_maker.hpp"

namespace nanotron::data {
namespace {

using test::data_config;
using test::Scratch;

// The later tokens, and what `load` gives without them.
void load_later(BatchLoader& loader, index_t first_sample, index_t micro_batch, index_t steps,
                std::vector<std::int32_t>& inputs, std::vector<std::int32_t>& targets) {
  std::vector<std::int32_t> own(inputs.size()), own_targets(own), alone(own), alone_targets(own);
  const BatchLoader::Later later{.steps = steps, .inputs = inputs.data(), .targets = targets.data()};
  const std::uint64_t hash = loader.load(first_sample, micro_batch, own.data(), own_targets.data(), later);
  EXPECT_EQ(loader.load(first_sample, micro_batch, alone.data(), alone_targets.data()), hash);
  EXPECT_TRUE(own == alone && own_targets == alone_targets);
}

constexpr std::uint32_t vocab_size = 251;

// A token file with these documents.
void make_documents(const std::filesystem::path& path, const std::vector<std::uint64_t>& starts) {
  const hdf5::File file = test::new_file(path);
  test::put(file.id(), "tokens", H5T_STD_U16LE, H5T_NATIVE_UINT32, test::sample_tokens(41, vocab_size), {41});
  test::put(file.id(), "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64, starts, {starts.size()});
}

// Sequences 2 and 3 of the file, with documents of 1, 9, 3 and 7 tokens: what is 1 and 2 positions later, in the same
// document. Their last target is of the next sequence.
TEST(LaterTokens, StayInTheirDocument) {
  const Scratch scratch(test::world());
  make_documents(scratch / "tokens.h5", {3, 12, 12, 20, 21, 33});
  const TokenFile file(scratch / "tokens.h5");
  const auto tokens = test::sample_tokens(41, vocab_size);
  auto data = data_config(10, 4, 2, deck::Shuffle::none);
  const std::vector<index_t> with_mask{1, 10, 13, 20}, without{10, 20};  // ends of documents
  for (const auto mask : {deck::DocumentMask::none, deck::DocumentMask::block_diagonal}) {
    data.document_mask = mask;
    const bool has_mask = mask == deck::DocumentMask::block_diagonal;
    BatchLoader loader(data, 1, file, Split::training, 1, 2);
    std::vector<std::int32_t> inputs(40, 7), targets(40, 7);
    load_later(loader, 0, 0, 2, inputs, targets);
    for (index_t i = 0; i < 40; ++i) {
      const index_t p = i % 20, at = p + 1 + i / 20;
      const index_t end = *std::ranges::upper_bound(has_mask ? with_mask : without, p);
      const bool is_last = at + 1 == end && end % 10 != 0 && has_mask;
      EXPECT_EQ(inputs[std::size_t(i)], at < end ? int(tokens[std::size_t(20 + at)]) : no_token) << i;
      EXPECT_EQ(targets[std::size_t(i)], at < end && !is_last ? int(tokens[std::size_t(21 + at)]) : no_target) << i;
    }
  }
}

TEST(LaterTokens, OfAShardAreThoseOfTheSequence) {
  const Scratch scratch(test::world());
  test::make_token_file(scratch / "tokens.h5", 13 * 20 + 1, vocab_size);
  const TokenFile file(scratch / "tokens.h5");
  auto data = data_config(13, 4, 2, deck::Shuffle::global);
  BatchLoader whole(data, 3, file, Split::training, 0, 1);
  std::vector<std::int32_t> inputs(26 * 3), targets(26 * 3), part(26 * 3), part_targets(26 * 3);
  load_later(whole, 4, 1, 3, inputs, targets);
  EXPECT_EQ(std::ranges::count(targets, no_target), 2 * (1 + 2 + 3));
  for (const ContextDegrees degrees : {ContextDegrees{3, 1}, {1, 3}}) {
    const SequenceLayout layout(degrees, 13);
    for (int r = 0; r < 3; ++r) {
      BatchLoader loader(data, 3, {&file, 1}, Split::training, 0, 1, layout[r], 4);
      load_later(loader, 4, 1, 3, part, part_targets);
      const index_t length = layout[r].length();
      for (index_t i = 0; i < 3 * 2 * length; ++i) {
        const auto at = static_cast<std::size_t>(i / length * 13 + layout[r].position_of(i % length));
        EXPECT_EQ(part[static_cast<std::size_t>(i)], inputs[at]);
        EXPECT_EQ(part_targets[static_cast<std::size_t>(i)], targets[at]);
      }
    }
  }
  data.validation_fraction = 0.5;
  BatchLoader validation(data, 3, file, Split::validation, 0, 1);
  load_later(validation, 0, 0, 3, inputs, targets);
  EXPECT_EQ(std::ranges::count(inputs, no_token), 26 * 3);
}

}  // namespace
}  // namespace nanotron::data
