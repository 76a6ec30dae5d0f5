// ranks: 1 2 4
// timeout: 300
// Documents packed by classes of length follow the serial run on grids of context-parallel ranks; keys go only as far
// as documents reach, so that short documents need no message.

#include <gtest/gtest.h>

#include <algorithm>

#include "nanotron/data/order/documents.hpp"
#include "support/comparison.hpp"
#include "support/golden.hpp"
#include "support/test_folder.hpp"
#include "support/world.hpp"

namespace nanotron {
namespace {

constexpr std::int64_t steps = std::min<std::int64_t>(4, test::compared_steps);
constexpr double tolerance = 1e-11;

class LengthBuckets : public testing::Test {
 protected:
  LengthBuckets() : folder_(test::world(), "buckets") { MPI_Comm_size(test::world(), &ranks_); }

  // Documents of 2 to `longest` tokens, more short ones than long ones.
  deck::Config config(std::uint64_t longest, bool in_buckets) {
    deck::Config c = test::golden_config("qwen2");
    c.data.sequence_length = 32;
    c.data.micro_batch_size = 2;
    c.data.document_mask = deck::DocumentMask::block_diagonal;
    c.data.sequences = deck::SequenceKind::documents;
    c.data.length_buckets = in_buckets;
    c.data.path = (folder_.path() / ("documents_" + std::to_string(longest) + ".h5")).string();
    int rank = 0;
    MPI_Comm_rank(test::world(), &rank);
    if (rank == 0 && !std::filesystem::exists(c.data.path)) {
      test::write_tokens(c.data.path, 4000, 131);
      std::vector<std::uint64_t> starts;
      for (std::uint64_t at = 0, i = 0; at < 4000; ++i) {
        starts.push_back(at);
        at += i % 4 == 3 ? 2 + i * i % (longest - 1) : 2 + i * 7 % std::min<std::uint64_t>(longest - 1, 3);
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

TEST_F(LengthBuckets, SendLessThanWithoutThem) {
  if (ranks_ == 1) return;
  const auto bytes = [&](const deck::Config& c) {
    return follows(c, test::serial(c, steps), ranks_, 1).counted.context_parallel;
  };
  const auto all = bytes(config(40, false)), mixed = bytes(config(40, true)), few = bytes(config(4, true));
  EXPECT_LE(mixed, all);    // a long document in each micro-batch needs the ring
  EXPECT_LT(few, all / 4);  // of other communication over the group
}

TEST_F(LengthBuckets, GoOnOnAnotherGrid) {
  if (ranks_ == 1) return;
  deck::Config c = config(40, true);
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
