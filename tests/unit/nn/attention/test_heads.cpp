#include "nanotron/nn/attention/heads.hpp"

#include <gtest/gtest.h>

namespace nanotron::nn {
namespace {

struct Heads {
  index_t query, key;
};

class ShardHeads : public testing::TestWithParam<Heads> {};

TEST_P(ShardHeads, CoverTheModelOnceAndHoldWhatTheyRead) {
  const auto [query, key] = GetParam();
  for (int parts = 1; parts <= query; ++parts) {
    index_t next_query = 0, next_owned = 0, most = 0, least = query;
    for (int i = 0; i < parts; ++i) {
      const HeadShard s = shard_heads(query, key, parts, parts, i);
      EXPECT_EQ(s.query.begin, next_query);
      EXPECT_EQ(s.owned_key.begin, std::max(next_owned, s.owned_key.begin));
      next_query = s.query.end;
      for (index_t h = s.query.begin; h < s.query.end; ++h) EXPECT_TRUE(s.key.contains(h / s.group));
      if (s.owned_key.size() > 0) {
        EXPECT_EQ(s.owned_key.begin, next_owned);
        next_owned = s.owned_key.end;
        EXPECT_TRUE(s.key.contains(s.owned_key.begin) && s.key.contains(s.owned_key.end - 1));
      }
      most = std::max(most, s.query.size());
      least = std::min(least, s.query.size());
    }
    EXPECT_EQ(next_query, query);
    EXPECT_EQ(next_owned, key);
    EXPECT_GE(least, 1);
    EXPECT_LE(most - least, key >= parts ? query / key : 1) << parts;
  }
}

// A rank has the query heads of its shards, and a piece lies in a shard and in the group of one key head.
TEST_P(ShardHeads, AreThoseOfTheShards) {
  const auto [query, key] = GetParam();
  for (int shards = 1; shards <= query; ++shards) {
    const index_t piece = heads_of_piece(query, key, shards);
    EXPECT_EQ(query / key % piece, 0);
    for (int parts = 1; parts <= shards; ++parts) {
      if (shards % parts != 0) continue;
      const int each = shards / parts;
      for (int i = 0; i < parts; ++i) {
        const HeadShard s = shard_heads(query, key, shards, parts, i);
        EXPECT_EQ(s.query.begin, shard_heads(query, key, shards, shards, i * each).query.begin);
        EXPECT_EQ(s.query.end, shard_heads(query, key, shards, shards, (i + 1) * each - 1).query.end);
        EXPECT_EQ(s.query.begin % piece, 0);
        EXPECT_EQ(s.query.end % piece, 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ShardHeads,
                         testing::Values(Heads{1, 1}, Heads{4, 2}, Heads{8, 8}, Heads{8, 2}, Heads{6, 3}, Heads{9, 3},
                                         Heads{32, 8}, Heads{7, 1}, Heads{12, 4}));

}  // namespace
}  // namespace nanotron::nn
