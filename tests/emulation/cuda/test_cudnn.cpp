// ranks: 1
// Which attention cuDNN is given, in which parts, and that it is what the batched GEMMs give.
#include <array>

#include "emulation/cudnn_test.hpp"

namespace nanotron::test {
namespace {

TEST_F(Cudnn, IsWhatTheBatchedGemmsGive) {
  AttentionShape s = shape(2, 96, 4, 2, 16);
  expect_as_blocked(s, planned_bytes(s));
  s.window = 40;
  expect_as_blocked(s, planned_bytes(s));
  s.window = 0;
  s.query_position = 200;  // a piece whose keys are all before its queries
  s.key_position = 8;
  s.key_length = 72;
  s.query_rows = 104;
  s.key_rows = 80;
  expect_as_blocked(s, planned_bytes(s));
  expect_as_blocked(shape(1, 64, 3, 3, 24), planned_bytes(shape(1, 64, 3, 3, 24)));
}

// What cuDNN 9.19 answered for (4, 72, 6, 3, 8) on an H200: for 4, 2, 1 sequences, and one key head of one.
TEST_F(Cudnn, RunsInPartsThatFitTheWorkspace) {
  const AttentionShape s = shape(4, 72, 6, 3, 8);
  constexpr std::array<std::size_t, 4> fastest{117'760, 59'008, 29'632, 10'048},
      repeated{848'896, 424'576, 212'416, 70'976};
  for (std::size_t i = 0; i < fastest.size(); ++i) {
    expect_as_blocked(s, fastest[i], std::array{1, 2, 4, 12}[i]);
    expect_as_blocked(deterministic(s), repeated[i], std::array{1, 2, 4, 12}[i]);
  }
  Tensors t(s, 8);
  EXPECT_TRUE(forward(s, t, 256));
  EXPECT_FALSE(forward(s, t, 255));
  EXPECT_FALSE(backward(s, t, fastest.back() - 1));
  EXPECT_FALSE(backward(deterministic(s), t, repeated.back() - 1));
}

// More than the batched GEMMs need, for the first of them.
TEST_F(Cudnn, OneCallTakesTheWorkspaceThatIsPlanned) {
  for (const AttentionShape& s : {shape(1, 1024, 2, 1, 8), shape(1, 256, 2, 2, 64), shape(2, 200, 6, 2, 24)}) {
    expect_as_blocked(s, planned_bytes(s), 1);
    expect_as_blocked(deterministic(s), planned_bytes(deterministic(s)), 1);
  }
}

TEST_F(Cudnn, IsNotAskedForTheRest) {
  const AttentionShape good = shape(1, 64, 4, 2, 16);
  const auto asked = [&](AttentionShape s, index_t gap) {
    Tensors t(s, gap);
    const bool runs = forward(s, t, planned_bytes(s));
    EXPECT_EQ(backward(s, t, planned_bytes(s)), runs);
    return runs;
  };
  EXPECT_TRUE(asked(good, 8));
  EXPECT_FALSE(asked(good, 4)) << "rows that are not aligned";
  const auto with = [&](const auto& change) {
    AttentionShape s = good;
    change(s);
    return s;
  };
  EXPECT_FALSE(asked(with([](AttentionShape& s) { s.query_length = s.key_length = 63; }), 8)) << "few queries";
  EXPECT_FALSE(asked(with([](AttentionShape& s) { s.query_position = 1; }), 8)) << "a cut diagonal";
  EXPECT_FALSE(asked(with([](AttentionShape& s) { s.key_position = 200; }), 8)) << "keys behind the queries";
  EXPECT_FALSE(asked(shape(1, 64, 2, 2, 12), 0)) << "a head of 24 bytes";
  EXPECT_FALSE(asked(shape(1, 66, 4, 2, 16), 8)) << "statistics of heads that are not aligned";
  AttentionShape cut = shape(1, 64, 3, 2, 16);
  cut.group = 2;
  cut.first_query_head = 3;
  cut.first_key_head = 1;
  EXPECT_FALSE(asked(cut, 8)) << "a shard that cuts a group";
}

}  // namespace
}  // namespace nanotron::test
