// ranks: 1 2 4
// timeout: 300
// Documents packed by classes of length follow the serial run on grids of context-parallel ranks; keys go only as far
// as documents reach, so that short documents need no message, and micro-batches have documents of one class.

#include <gtest/gtest.h>

#include <algorithm>

#include "nanotron/data/order/documents.hpp"
#include "support/comparison.hpp"
#include "support/golden.hpp"
#include "support/test_folder.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = std::min<std::int64_t>(3, test::compared_steps);
constexpr double tolerance = 1e-11;

class LengthBuckets : public testing::Test {
 protected:
  LengthBuckets() : folder_(test::world(), "buckets") { MPI_Comm_size(test::world(), &ranks_); }

  // Documents of 2 to `longest` tokens, one in `long_every` a long one.
  deck::Config config(std::uint64_t longest, bool in_buckets, const std::vector<std::string>& set = {},
                      std::uint64_t long_every = 4) {
    deck::Config c = test::golden_config("qwen2", set);
    if (!set.empty()) c.checkpoint.resume = "none";
    c.data.sequence_length = 32;
    if (std::ranges::find(set, "data.micro_batch_size=1") == set.end()) c.data.micro_batch_size = 2;
    c.data.document_mask = deck::DocumentMask::block_diagonal;
    c.data.sequences = deck::SequenceKind::documents;
    c.data.length_buckets = in_buckets;
    c.data.path =
        (folder_.path() / ("documents_" + std::to_string(longest) + "_" + std::to_string(long_every) + ".h5")).string();
    int rank = 0;
    MPI_Comm_rank(test::world(), &rank);
    if (rank == 0 && !std::filesystem::exists(c.data.path)) {
      test::write_tokens(c.data.path, 4000, 131);
      std::vector<std::uint64_t> starts;
      for (std::uint64_t at = 0, i = 0; at < 4000; ++i) {
        starts.push_back(at);
        at += i % long_every == 3 ? 2 + i * i % (longest - 1) : 2 + i * 7 % std::min<std::uint64_t>(longest - 1, 3);
      }
      test::write_documents(c.data.path, starts);
    }
    MPI_Barrier(test::world());
    return c;
  }

  test::Numbers follows(deck::Config c, const test::Numbers& reference, int cp, int all_to_all) const {
    c.parallel.cp = cp;
    c.parallel.dp = ranks_ / cp;
    c.parallel.cp_all_to_all = all_to_all;
    const test::Numbers ours = test::run_training(c, test::world(), steps);
    EXPECT_LT(test::worst_loss_difference(ours, reference), tolerance);
    EXPECT_EQ(ours.hashes, reference.hashes);
    test::expect_same_state(ours.parameters, reference.parameters);
    EXPECT_LE(ours.counted.context_parallel, ours.predicted.context_parallel);
    return ours;
  }

  test::TemporaryFolder folder_;
  int ranks_ = 1;
};

TEST_F(LengthBuckets, FollowTheSerialRun) {
  const deck::Config c = config(40, true);
  const test::Numbers reference = test::serial(c, steps);
  for (const int cp : {2, 4}) {
    if (ranks_ % cp == 0) follows(c, reference, cp, 1);
  }
  if (ranks_ == 4) follows(c, reference, 4, 2);
}

// Also where an all-to-all within the parts of a ring gives a rank some heads of a longer part.
TEST_F(LengthBuckets, GoWithEverythingElse) {
  if (ranks_ == 1) return;
  for (const std::vector<std::string>& set :
       {std::vector<std::string>{"parallel.zero_stage=3", "parallel.recompute=full", "data.shuffle=global"},
        std::vector<std::string>{"model.sliding_window=9", "data.goldfish_k=3", "data.micro_batch_size=1"}}) {
    const deck::Config c = config(40, true, set);
    const test::Numbers reference = test::serial(c, steps);
    follows(c, reference, ranks_, 1);
    if (ranks_ == 4) follows(c, reference, 2, 1);
    if (ranks_ == 4) follows(c, reference, 4, 2);
  }
}

// Layout bits, which a ring has not.
TEST_F(LengthBuckets, KeepTheirBits) {
  if (ranks_ == 1) return;
  for (const int cp : {1, 2}) {
    deck::Config c =
        config(40, true,
               {"precision.reproducible=layout", "precision.context_shards=2", "precision.tensor_shards=2",
                "parallel.cp_mode=all_to_all", "model.tie_word_embeddings=.false.", "data.shuffle=global"});
    const test::Numbers reference = test::serial(c, steps);
    c.parallel.cp = cp;
    c.parallel.dp = ranks_ / cp;
    const test::Numbers ours = test::run_training(c, test::world(), steps);
    EXPECT_EQ(ours.losses, reference.losses);
    EXPECT_EQ(ours.hashes, reference.hashes);
    EXPECT_EQ(ours.parameters, reference.parameters);
  }
}

TEST_F(LengthBuckets, SendLessThanWithoutThem) {
  if (ranks_ == 1) return;
  const std::vector<int> neighbours = ranks_ == 4 ? std::vector{1, 2} : std::vector{1};
  for (const int all_to_all : neighbours) {
    const auto bytes = [&](const deck::Config& c) {
      const auto mine = follows(c, test::serial(c, steps), ranks_, all_to_all).counted.context_parallel;
      std::uint64_t sum = 0;
      MPI_Allreduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, test::world());
      return sum;
    };
    const std::vector<std::string> drawn{"data.global_batch_size=16", "data.shuffle=global"};
    const auto all = bytes(config(40, false, drawn, 12)), mixed = bytes(config(40, true, drawn, 12)),
               few = bytes(config(4, true, drawn));
    EXPECT_LT(few, mixed);
    // A third of what short documents save, although half of the micro-batches would have a long one.
    EXPECT_GT(3 * (all - mixed), all - few);
  }
}

TEST_F(LengthBuckets, GoOnOnAnotherGrid) {
  if (ranks_ == 1) return;
  deck::Config c = config(40, true, {"data.shuffle=global"});
  const test::Numbers reference = test::serial(c, 4);
  c.parallel.cp = ranks_;
  c.parallel.dp = 1;
  c.checkpoint.directory = (folder_.path() / "checkpoints").string();
  test::run_training(c, test::world(), 2, true);
  MPI_Barrier(test::world());
  c.checkpoint.resume = (folder_.path() / "checkpoints" / "step_00000002").string();
  const test::Numbers rest = test::serial(c, 4);
  EXPECT_EQ(rest.hashes, std::vector<std::uint64_t>(reference.hashes.begin() + 2, reference.hashes.end()));
}

// Every document once, each within the smallest block that can hold it.
TEST_F(LengthBuckets, NeitherLoseNorRepeatADocument) {
  const deck::Config plain = config(40, false), buckets = config(40, true);
  const data::TokenFile file(plain.data.path);
  std::multiset<std::vector<std::int32_t>> found[2];
  for (const deck::Config* c : {&plain, &buckets}) {
    const data::PackedDocuments packed(c->data, file, data::Split::training);
    std::vector<std::int32_t> inputs(32), targets(32), starts(32);
    for (index_t s = 0; s < packed.count(); ++s) {
      packed.read(s, {0, 32}, inputs.data(), targets.data());
      packed.document_starts(s, starts);
      for (std::size_t begin = 0, end; begin < 32; begin = end) {
        end = begin + 1;
        while (end < 32 && starts[end] == static_cast<std::int32_t>(begin)) ++end;
        if (targets[begin] == data::no_target) continue;  // an empty position
        found[c == &buckets].insert(
            {inputs.begin() + static_cast<std::ptrdiff_t>(begin), inputs.begin() + static_cast<std::ptrdiff_t>(end)});
        std::size_t block = 32;
        while (c == &buckets && block / 2 >= end - begin && block > 1) block /= 2;
        EXPECT_EQ(begin / block, (end - 1) / block) << begin << " to " << end;
      }
    }
  }
  EXPECT_EQ(found[0], found[1]);
}

}  // namespace
}  // namespace nanotron
